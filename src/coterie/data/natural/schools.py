"""Pupils of schools and of local authorities, and students of departments."""

from __future__ import annotations

from coterie.data.natural.declared import NaturalSet, RowsWith

EXAM = NaturalSet(
    name="natural/exam",
    description="pupils of schools in inner London; regression: exam score at 16, standardised",
    table="mlmRev/Exam",
    licence="GPL (>= 2)",
    origin="Goldstein et al., Oxford Review of Education 19 (1993) 425-433",
    owner="school",
    owners="schools",
    target="normexam",
    numbers=("standLRT",),
    categories=("intake", "sex"),
    left_out={
        "person": ("student",),
        "the same in all rows of a school": ("schgend", "schavg", "vr", "type"),
    },
    digest="c898f4a5c7fa65edaeea6cd0b555e9fad2ac5cc2e5c3ec28f1bfdf55213fc211",
)
HSB82 = NaturalSet(
    name="natural/hsb82",
    description="pupils of American high schools; regression: achievement in mathematics, standardised",
    table="mlmRev/Hsb82",
    licence="GPL (>= 2)",
    origin="Raudenbush and Bryk, Hierarchical Linear Models (Sage, 2002)",
    owner="school",
    owners="schools",
    target="mAch",
    numbers=("ses",),
    categories=("minrty", "sx"),
    left_out={
        "the same in all rows of a school": ("meanses", "sector"),
        "ses less the school's mean: together they tell the school": ("cses",),
    },
    digest="37a4ed1c2ca39f35afb4e74e9701a637cd88994e9f5f2274535ff9ab424e70e9",
)
CHEM97 = NaturalSet(
    name="natural/chem97",
    description="pupils in local education authorities of England; regression: A-level chemistry, standardised",
    table="mlmRev/Chem97",
    licence="GPL (>= 2)",
    origin="Yang, Fielding and Goldstein (2002); Centre for Multilevel Modelling, Bristol",
    owner="lea",
    owners="authorities",
    target="score",
    numbers=("age", "gcsescore"),
    categories=("gender",),
    left_out={
        "person": ("student",),
        "the school, a finer owner": ("school",),
        "another form of an input": ("gcsecnt",),
    },
    digest="bf96de34f1a9ddb5ba6581c4d155a97e8a1e5ff67e7acaa10e2f11288ced5c0e",
)
EGSINGLE = NaturalSet(
    name="natural/egsingle",
    description="second-graders of American schools; regression: mathematics, standardised",
    table="mlmRev/egsingle",
    licence="GPL (>= 2)",
    origin="US Sustaining Effects study, as distributed with HLM (Bryk, Raudenbush and Congdon, 1996)",
    owner="schoolid",
    owners="schools",
    target="math",
    numbers=("year",),
    categories=("female", "black", "hispanic"),
    keep=(RowsWith("grade", ("2",), "grades other than the second, which are of the same children"),),
    subject="childid",
    left_out={
        "the same in all rows of a school": ("size", "lowinc", "mobility"),
        "0 in all rows that are used": ("retained",),
    },
    digest="f38e26d746eef5c9ab3c5d83578bdbd237b4e40f27b27a92ad680f9548a9ca75",
)
STAR = NaturalSet(
    name="natural/star",
    description="children of kindergartens in Tennessee, classes of two sizes; regression: mathematics, standardised",
    table="mlmRev/star",
    licence="GPL (>= 2)",
    origin="Student Teacher Achievement Ratio project, Tennessee",
    owner="sch",
    owners="schools",
    target="math",
    numbers=("exp", "birthy"),
    categories=("cltype", "hdeg", "ses", "sx", "eth"),
    keep=(RowsWith("gr", ("K",), "grades after kindergarten, which are of the same children"),),
    subject="id",
    left_out={
        "the target's twin, of the same day": ("read",),
        "the same in all rows of a school": ("schtype", "yrs"),
        "the teacher, a finer owner, and what tells teachers apart": ("tch", "clad", "trace"),
        "another form of an input": ("birthq",),
    },
    digest="15e6f2dabde89a170729b2acc4f739bc5f01a9146c5ea2ed25c084f00d6f2a13",
)
INSTEVAL = NaturalSet(
    name="natural/insteval",
    description="lectures at ETH Zurich, rated from 1 to 5 by students; departments are the owners",
    classes=5,
    table="lme4/InstEval",
    licence="GPL (>= 2)",
    origin="ETH Zurich, survey of students, anonymised and simplified by its publishers",
    owner="dept",
    owners="departments",
    target="y",
    numbers=("studage", "lectage"),
    categories=("service",),
    left_out={"student and lecturer, thousands of them": ("s", "d")},
    note="A student rates several lectures, also of several departments. The inputs say little: what there is to learn "
    "is how departments are rated.",
    digest="a573e78974469b90753077cf83e4e343ab6a10029d72e43cf417e22fa606e460",
)
