"""Compare methods so that the answer can be trusted: the same partitions, three seeds, differences seed by seed."""

import coterie as ct

if __name__ == "__main__":  # runs may be spread over processes
    groups = ct.Pathological(clients=20)
    same = {"partition": groups, "test": 0.75, "rounds": 15, "lr": 0.05, "engine": "stacked", "threads": 1}
    comparison = ct.compare(
        {
            "alone": ct.Experiment("local", **same),
            "one model": ct.Experiment("fedavg", **same),
            "one, trained on": ct.Experiment("fedavg-ft", **same),
            "own classifiers": ct.Experiment("fedper", **same),
            "similar ones": ct.Experiment(ct.FedReMa(delta=0), **same),
        },
        seeds=[0, 1, 2],
        out="compared",
        jobs=1,
    )
    frame = comparison.to_frame().set_index(["method", "seed"])
    for moment in ("received_mean_last", "trained_mean_last"):
        print(f"{moment}, against training alone:")
        for method in comparison.methods[1:]:
            gain = frame.loc[method, moment] - frame.loc["alone", moment]  # with a seed, all have the same clients
            by_seed = ", ".join(f"{one:+.3f}" for one in gain)
            print(f"  {method:16}{gain.mean():+.3f} ± {gain.std():.3f}   (seed by seed {by_seed})")
