"""A fifth of the clients sends five times the opposite of what it learned; what a median saves the others from."""

import coterie as ct

few = {"partition": ct.Iid(clients=10), "rounds": 8, "lr": 0.05, "threads": 1}
hostile = "sign-flip:0.2:factor=5"
for attack, defence in (("", ""), (hostile, ""), (hostile, "median"), ("", "median")):
    result = ct.Experiment("fedavg", attack=attack, defence=defence, **few).run()
    honest = result.summary["honest" if attack else "accuracy"]["received"]["mean"]["last"]
    print(f"attack {attack or 'none':22}  defence {defence or 'none':6}  accuracy {honest:.2f}")
