"""A chaos day: a federation of five sites on real processes, to which everything happens that can happen to one.

`python -m tools.chaos --seed 0` draws 300 faults over 200 rounds and injects them one after the other, each at its
moment (its round, and a phase of that). The rules by which the day is judged were laid down before the first one:

**Rows.** After every round, what the server keeps and what each site that answered keeps are compared bit for bit with
a replay in one process, in which just those sites answered that the line of the round names. A round that is taken
again (the server was killed, its checkpoint damaged, an old back-up brought back) counts as it is taken last; the
replay goes back as well. What is lost at a site (a torn snapshot, a disk of before) is lost at the replay's site too.

**A miss.** A site misses a round if its answer does not count in it. It may miss rounds because of a fault of its own
only: from the round that is open when the fault comes, to the first round that it answers which was opened after the
fault was over. Of the rounds that are opened later than `BACK` seconds after the fault, it misses none. A hostile
message makes its sender the faulty site. A fault of the server's, of Flower's processes there or of its line excuses
nobody: its round waits, or is taken again. Any other miss is a violation.

**Silence.** A word is anything new in the server's output, its log or its status. Whoever looks must never have to
wait for more than `QUIET` seconds without one, unless the last one says what is waited for. While the server's command
itself is stopped or being started by whoever restarts it, nobody can speak: that time does not count.

**Status.** `status.json` is read as `coterie` reads it, five times a second. It must say what is so: under way while
something is, failed when nothing is, finished after the last round alone, the round that is open or the one before it,
and the process that it names must live. It may lag behind by `LAG` seconds.

The day itself is what systemd would be: a command that ends is started again. What is hostile is a site's own library
(`hostile`), or comes past its library with its key. Nothing is done to the day's own files, and no fault breaks TLS.
"""
