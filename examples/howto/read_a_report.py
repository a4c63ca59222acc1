"""Make a report, and look up in Python what its figures show."""

import coterie as ct
from coterie.report import report

experiment = ct.Experiment(
    ct.FedReMa(delta=0), "digits", ct.Pathological(clients=10), test=0.75, rounds=12, lr=0.05, threads=1
)
experiment.run("reported")
ct.Experiment("local", "digits", ct.Pathological(clients=10), test=0.75, rounds=12, lr=0.05, threads=1).run("alone")
print("open", report(["reported", "alone"], "report.html"))

run, alone = ct.open_run("reported"), ct.open_run("alone")
received, trained = run.accuracy().received, run.accuracy().trained
print(f"curves: {received.mean['last']:.3f} as received, {trained.mean['last']:.3f} after training")
print(f"its best round would say {received.mean['best']:.3f}, chosen with the test samples")
gains = received.by_client - alone.accuracy().received.by_client
print(f"against training alone: {(gains > 0).sum()} clients gain, {(gains < 0).sum()} lose")
print("client 0 learns most from", run.mixes(12)[-1].weights[0].topk(2).indices.tolist())
