"""A real federation on one machine: a server and three sites, each in processes of its own, on encrypted lines."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

import coterie as ct

SITES = ("ward-a", "ward-b", "ward-c")


def coterie(*words, background=False):
    """A command, as it would be typed in a terminal: to its end, or in the background with its output in a file."""
    command = [sys.executable, "-m", "coterie", *words]
    if background:
        return subprocess.Popen(command, stdout=Path(f"{words[1]}.log").open("a"), stderr=subprocess.STDOUT)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    digits = load_digits()
    for number, site in enumerate(SITES):  # every site has four of the ten digits
        mine = np.isin(digits.target, [(3 * number + place) % 10 for place in range(4)])
        np.savez(f"{site}.npz", x=(digits.images[mine, None] / 8 - 1).astype("float32"), y=digits.target[mine])

    # Where the server is: the terms, its certificate.
    coterie("federation", "init", "wards", "--sites", ",".join(SITES), "--shape", "1,8,8", "--classes", "10",
            "--method", "fedper", "--rounds", "4", "--lr", "0.05", "--gather", "120", "--hello", "120",
            "--deadline", "120", "--least-sites", "3")  # fmt: skip
    coterie("federation", "keys", "wards", "--host", "localhost")
    # At each site: read and accept the terms, make a key; its public half goes to the server.
    for site in SITES:
        told = coterie(
            "federation", "join", "wards/federation.toml", "--name", site, "--root-certificate", "wards/keys/ca.pem"
        )
        key = re.search(r"--accept (\S+)='(.*)'", told)
        coterie("federation", "keys", "wards", "--accept", f"{key[1]}={key[2]}")
    # Both sides run; the server ends after the last round.
    server = coterie("federation", "server", "wards", "--port", port, background=True)
    sites = [coterie("federation", "client", "--server", f"localhost:{port}", "--name", site, "--data", f"{site}.npz",
                     background=True) for site in SITES]  # fmt: skip
    try:
        print("the server ended with code", server.wait(timeout=900))
    finally:
        for process in (server, *sites):
            process.terminate()
            process.wait()
    # Every site takes its own model away as a file.
    for site in SITES:
        print(coterie("federation", "model", "--client", site, "--out", f"{site}.safetensors").strip())
        model, data = ct.load_model(f"{site}.safetensors"), np.load(f"{site}.npz")
        right = model(torch.from_numpy(data["x"])).argmax(1) == torch.from_numpy(data["y"])
        print(f"  it is right on {right.float().mean():.2f} of all its samples, most of which it was trained on")
