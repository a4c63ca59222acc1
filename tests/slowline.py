"""A bad line: passes TCP on slowly, breaks a connection off now and then, and says when much goes up.

Run as a script of its own, `slowline.py HOST PORT TO_HOST TO_PORT MARKER`: the file MARKER appears while something
large is on its way up.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

PIECE = 4096
DELAY = 0.04  # seconds for each piece, up and down
LARGE = 12_000  # bytes within WINDOW: no question or heartbeat is as large
WINDOW = 1.0
LOST = 25  # every so many connections one is broken off


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, marker: Path | None) -> None:
    sent: list[tuple[float, int]] = []
    while piece := await reader.read(PIECE):
        await asyncio.sleep(DELAY)
        writer.write(piece)
        await writer.drain()
        now = time.monotonic()
        sent = [(when, size) for when, size in [*sent, (now, len(piece))] if now - when < WINDOW]
        if marker is not None and sum(size for _, size in sent) > LARGE:
            marker.touch()


async def main() -> None:
    host, port, to_host, to_port, marker = sys.argv[1:]
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        lost = count % LOST == 0
        try:
            onward, out = await asyncio.open_connection(to_host, int(to_port))
        except OSError:
            writer.transport.abort()
            return
        ways = [
            asyncio.ensure_future(pass_on(reader, out, Path(marker))),
            asyncio.ensure_future(pass_on(onward, writer, None)),
        ]
        await asyncio.wait(ways, timeout=0.5 if lost else None, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        for end in (writer, out):
            end.transport.abort()

    server = await asyncio.start_server(serve, host, int(port))
    print("open", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
