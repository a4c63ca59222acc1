"""A table of runs that take seconds, in the form of a paper's."""

from __future__ import annotations

from coterie.reproduce.paper import PaperTable, read_table

TOML = """
title = "Toy, table 1: digits"
paper = "Toy"
proposed = "pfedsim"
protocol = "pfedsim"
seeds = 2
notes = ["Toys only."]

[reports]
moment = "stored"
mean = "weighted"
round = "last"

[settings]
data = "digits"
model = "mlp"
partition = "dirichlet"
clients = 6
alpha = 0.5
least = 10
rounds = 3
epochs = 1
join = 0.5
stats = "mean"

[[columns]]
key = "half"
title = "Half"

[[columns]]
key = "tenth"
title = "Tenth"
settings = { alpha = 0.1 }

[[columns]]
key = "bytes"
title = "Bytes"
measure = "upload"
unit = "bytes"

[[columns]]
key = "time"
title = "Time"
measure = "seconds"
unit = "1e-4 s"

[[rows]]
key = "local"
title = "Local"
paper = { half = [50.0, 1.0] }

[[rows]]
key = "fedavg"
title = "FedAvg"
reports = { moment = "received" }
paper = { half = [40.0] }
note = "Tested as received."

[[rows]]
key = "pfedsim"
title = "pFedSim"
set = { rho = 0.5 }
paper = { half = [60.0, 0.5] }

[[rows]]
key = "other"
title = "Other"
method = ""
paper = { half = [55.0] }

[[claims]]
text = "Local beats FedAvg."
better = "local"
worse = "fedavg"

[[claims]]
text = "Local sends less than FedAvg."
better = "local"
worse = "fedavg"
columns = ["bytes"]
"""


def toy_table(text: str = TOML) -> PaperTable:
    return read_table("toy-table1", text)
