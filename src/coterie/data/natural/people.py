"""What people choose and say: households at the shelf, answers to a questionnaire, voters and borrowers of states."""

from __future__ import annotations

from coterie.data.natural.declared import NaturalSet

JAIN = "Jain, Vilcassim and Chintagunta, Journal of Business and Economic Statistics 12 (1994) 317-328"

CATSUP = NaturalSet(
    name="natural/catsup",
    description="purchases of ketchup by households, given prices and displays: which of four brands?",
    classes=4,
    table="Ecdat/Catsup",
    licence="GPL (>= 2)",
    origin=JAIN,
    owner="id",
    owners="households",
    target="choice",
    numbers=("price.heinz41", "price.heinz32", "price.heinz28", "price.hunts32"),
    categories=(
        *("disp.heinz41", "disp.heinz32", "disp.heinz28", "disp.hunts32"),
        *("feat.heinz41", "feat.heinz32", "feat.heinz28", "feat.hunts32"),
    ),
    digest="63a749798bcfd1570460487e39d3723db7c8c5f3638847db18852813f65c7363",
)
YOGURT = NaturalSet(
    name="natural/yogurt",
    description="purchases of yogurt by households, given prices and advertisements: which of four brands?",
    classes=4,
    table="Ecdat/Yogurt",
    licence="GPL (>= 2)",
    origin=JAIN,
    owner="id",
    owners="households",
    target="choice",
    numbers=("price.yoplait", "price.dannon", "price.hiland", "price.weight"),
    categories=("feat.yoplait", "feat.dannon", "feat.hiland", "feat.weight"),
    digest="d3d43d20fa87c5f063886f218ffdd514d84579e0bfe069d8d20d9636cac722ca",
)
CRACKER = NaturalSet(
    name="natural/cracker",
    description="purchases of crackers by households, given prices and displays: which of four brands?",
    classes=4,
    table="Ecdat/Cracker",
    licence="GPL (>= 2)",
    origin=JAIN,
    owner="id",
    owners="households",
    target="choice",
    numbers=("price.sunshine", "price.kleebler", "price.nabisco", "price.private"),
    categories=(
        *("disp.sunshine", "disp.kleebler", "disp.nabisco", "disp.private"),
        *("feat.sunshine", "feat.kleebler", "feat.nabisco", "feat.private"),
    ),
    digest="11dd8d9e012ff478f25d4afe5b37bd54acea1a81554209de980e934743697c91",
)
VERBAGG = NaturalSet(
    name="natural/verbagg",
    description="people's answers to 24 questions on verbal aggression, each of one kind: would they?",
    classes=2,
    table="lme4/VerbAgg",
    licence="GPL (>= 2)",
    origin="De Boeck and Wilson, Explanatory Item Response Models (Springer, 2004)",
    owner="id",
    owners="people",
    target="r2",
    categories=("btype", "situ", "mode"),
    left_out={
        "the answer in three grades, of which the target is a summary": ("resp",),
        "the same in all rows of a person": ("Anger", "Gender"),
        "the question itself, which its three properties describe": ("item",),
    },
    digest="93fb829e54758c72ae58c73a44893de2ad06b90528cf7f15c44e39433b936ee8",
)
TV16 = NaturalSet(
    name="natural/tv16",
    description="voters of the American states in 2016: for Trump?",
    classes=2,
    table="stevedata/TV16",
    licence="GPL-2",
    origin="Cooperative Congressional Election Study, 2016",
    owner="state",
    owners="states",
    target="votetrump",
    numbers=("age", "famincr", "ideo", "pid7na", "religimp", "churchatd", "prayerfreq"),
    categories=("female", "collegeed", "racef", "bornagain"),
    fewest=20,
    left_out={
        "person": ("uid",),
        "not asked of a fifth of the people": (
            *("angryracism", "whiteadv", "fearraces", "racerare"),
            *("lcograc", "lemprac"),
        ),
        "a summary of inputs": ("lrelig",),
    },
    digest="2e526403d561fd9ee9c36eb4f3c04adf3200cf14d33e413425ce931f0e3aa19d",
)
LOANS = NaturalSet(
    name="natural/loans",
    description="loans to people in the American states; regression: the rate of interest, standardised",
    table="openintro/loans_full_schema",
    licence="GPL-3",
    origin="Lending Club, loans of January to March 2018",
    owner="state",
    owners="states",
    target="interest_rate",
    numbers=(
        *("annual_income", "debt_to_income", "delinq_2y", "earliest_credit_line", "inquiries_last_12m"),
        *("total_credit_lines", "open_credit_lines", "total_credit_limit", "total_credit_utilized"),
        *("num_historical_failed_to_pay", "accounts_opened_24m", "num_active_debit_accounts", "total_debit_limit"),
        *("num_cc_carrying_balance", "num_mort_accounts", "account_never_delinq_percent", "loan_amount"),
    ),
    categories=("homeownership", "verified_income", "loan_purpose", "application_type", "term"),
    logged=("annual_income", "total_credit_limit", "total_credit_utilized", "total_debit_limit", "loan_amount"),
    fewest=20,
    left_out={
        "the lender's grade: the rate is set by it": ("grade", "sub_grade"),
        "the rate follows from it, amount and term": ("installment",),
        "known after the rate was set": (
            *("issue_month", "loan_status", "initial_listing_status", "disbursement_method", "balance"),
            *("paid_total", "paid_principal", "paid_interest", "paid_late_fees"),
        ),
        "free text": ("emp_title",),
        "gaps in many rows": (
            *("emp_length", "annual_income_joint", "verification_income_joint", "debt_to_income_joint"),
            *("months_since_last_delinq", "months_since_90d_late", "months_since_last_credit_inquiry"),
            *("num_accounts_120d_past_due",),
        ),
        "nearly the same as an input, or nearly always 0": (
            *("num_satisfactory_accounts", "num_total_cc_accounts", "num_open_cc_accounts"),
            *("current_installment_accounts", "num_collections_last_12m", "current_accounts_delinq"),
            *("total_collection_amount_ever", "num_accounts_30d_past_due", "tax_liens", "public_record_bankrupt"),
        ),
    },
    digest="d0199c06f073af9bd1c5339103e7c950fcc5e7c836a4b35d4bb8d49192228ef7",
)
