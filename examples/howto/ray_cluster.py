"""A comparison on a Ray cluster of two nodes (both on this machine here): the numbers are those of one machine."""

import os

import coterie as ct

if __name__ == "__main__":
    # In a lab: `ray start --head` on one machine, `ray start --address=…` on the others, and the address below.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's switch for nodes that stay on this machine
    from ray.cluster_utils import Cluster

    node = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "include_dashboard": False}
    nodes = Cluster(initialize_head=True, head_node_args=node)
    nodes.add_node(**node)

    same = {"partition": ct.Dirichlet(clients=10, alpha=0.1), "rounds": 5, "lr": 0.05, "engine": "serial", "threads": 1}
    methods = {name: ct.Experiment(name, **same) for name in ("local", "fedavg", "fedper")}
    spread = ct.compare(methods, seeds=[0, 1], out="spread", cluster=nodes.address)
    alone = ct.compare(methods, seeds=[0, 1], out="alone", jobs=1)
    nodes.shutdown()

    for name in methods:
        far, near = (found.values(name, "trained_mean_last") for found in (spread, alone))
        print(f"{name:8}{far[0]:.3f} and {far[1]:.3f}, {'as' if far == near else 'NOT as'} on one machine")
