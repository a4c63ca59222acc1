"""`coterie federation …`: training together over a network, a file for each command or two."""

from __future__ import annotations

from cyclopts import App

COMMANDS = ("init:init", "keys:keys", "join:join", "server:server", "client:client", "extend:extend", "model:model")

federation = App(
    name="federation",
    help="Train together over a network, on Flower: every site keeps its data, and its own model.",
)
for command in (*COMMANDS, "extend:rollback"):
    federation.command(f"{__name__}.{command}")
