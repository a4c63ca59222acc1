"""Everything at once, against a federation that runs by its own commands: none of it gets anywhere, or goes unseen.

The attackers: somebody outside who reaches the port; a member of the federation whose answers are made to end the run;
somebody with a copy of a site's key; whoever moves logs away and leaves half files behind. The honest sites end with
the bits that they would have had if nobody had tried; and while all that goes on, one of them leaves and another comes.
Attacks that need a machine of their own (other users, clocks, full disks, a server in the wrong hands) have tests of
theirs, which are listed here by what they try.
"""

from __future__ import annotations

import http.client
import importlib
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch

from coterie.deployment.agreement import Agreement
from coterie.deployment.as_run import note_of
from coterie.deployment.flower.folder import write_app
from coterie.deployment.flower.keys import make_site_key
from coterie.deployment.flower.processes import environment, flower_command
from coterie.runs.tensors import load_tensors
from coterie.testing.together import Together
from support import PATIENCE, eventually
from towns import Town, few_digits, tampered_library

pytest.importorskip("flwr", reason="the extra coterie[flower] is not installed")

LIMIT = 3600.0
SITES = ("site-a", "site-b", "site-x")
HOSTILE, LATER = "site-x", "site-d"

# What is tried elsewhere, and by which tests.
TRIED = {
    "test_attacks": {
        "a run started from outside": "test_nobody_outside_can_start_a_run",
        "a node registered from outside": "test_nobody_outside_can_register_a_node",
        "half a gigabyte to any path": "test_half_a_gigabyte_is_refused",
        "a server that sends another app": "test_a_site_runs_no_app_that_it_has_not_agreed_to",
        "a node that the agreement does not know": "test_a_node_that_somebody_registered_is_removed_at_the_next_start",
        "a site's interface on loopback": "test_other_users_of_the_machine_get_no_task",
        "folders that others can read": "test_state_is_for_its_owner_alone",
        "a message to another site, and one to nobody": "test_a_member_cannot_have_others_messages_stored",
    },
    "test_lost_messages": {
        "an empty message that replies to nothing": "test_what_replies_to_nothing_that_was_asked_is_left_aside",
        "an upload without end": "test_a_site_that_is_slow_to_upload_keeps_nobody_waiting",
        "a carrier that is too busy": "test_what_the_carrier_cannot_do_now_is_said_once_and_tried_again",
    },
    "test_envelopes": {
        "orders to another site": "test_a_signed_federation_runs_and_takes_no_orders_from_others",
        "old tasks, and another's": "test_a_task_is_taken_once_and_an_old_one_never_again",
        "answers for others": "test_answers_by_others_and_old_ones_cost_their_site_a_round_and_nobody_else",
    },
    "test_bounds": {
        "10^19 samples, rows of 3e38": "test_numbers_beyond_all_measure_cost_their_site_a_round",
        "a million claimed samples": "test_a_claimed_size_weighs_no_more_than_its_share",
        "a divergence where all are needed": "test_a_divergence_where_all_are_needed_is_said_at_once",
        "rows thirty times too large": "test_an_answer_far_too_large_for_its_round_is_set_aside",
    },
    "test_intact": {
        "half checkpoints, flipped bits": (
            "test_a_server_goes_on_from_its_last_whole_checkpoint_and_ends_as_if_nothing_was"
        ),
        "torn snapshots of a site": "test_a_site_goes_on_from_its_last_whole_snapshot",
        "torn lines of rounds": "test_no_line_of_a_round_is_lost_whatever_becomes_of_their_file",
        "another node's number among the keys": (
            "test_a_record_of_registered_keys_that_is_not_as_it_was_written_has_them_registered_anew"
        ),
    },
    "test_supervision": {
        "a full disk under the SuperLink": "test_a_full_disk_is_waited_for_with_whatever_it_ends",
        "each of the server's processes": "test_whatever_is_killed_the_federation_goes_on_and_its_status_is_true",
    },
    "test_poison": {
        "an upload a thousand times too large": "test_a_site_that_sends_poison_is_set_aside_and_let_back_in",
    },
    "test_watched": {
        "a second node without keys": "test_a_second_node_under_a_live_name_does_not_end_an_insecure_run",
        "control without keys": "test_control_is_closed_without_keys_too",
    },
    "test_gateway": {
        "control, and everything that is not for sites": "test_everything_else_is_not_found",
        "a body whose length nobody claims": "test_a_length_that_nobody_claims_is_counted",
        "another SuperLink behind the gateway": "test_only_known_keys_pass_and_what_is_behind_must_prove_itself",
        "a line forged in a log": "test_a_path_cannot_forge_a_line",
        "a flood": "test_a_flood_neither_fills_the_disk_nor_hides_others",
        "a thousand silent connections": "test_silent_connections_keep_nobody_out",
        "all connections for one site": "test_one_site_does_not_take_all_connections",
        "messages that nobody asked for": "test_a_message_that_is_no_answer_is_not_stored",
        "bytes without end": "test_no_more_bytes_follow_than_an_answer_has",
    },
    "test_folder": {
        "two builds of one agreement": "test_two_builds_give_one_hash",
    },
    "test_greedy_server": {
        "a server that asks for what is personal": "test_a_server_that_asks_for_what_is_personal_gets_nothing",
        "malformed tasks": "test_a_malformed_task_is_refused_whatever_is_wrong_with_it",
        "a personal classifier written over": "test_a_server_that_writes_what_is_personal_is_refused",
        "other rows and values of a site's own": (
            "test_nothing_that_a_site_keeps_beside_its_model_is_ever_written_by_a_server"
        ),
    },
    "test_hostile": {
        "the key of one site and the name of another": "test_a_refused_hello_changes_nothing",
        "answers that end a run": "test_one_answer_never_ends_a_run",
        "a farewell without samples": "test_a_farewell_without_samples_leaves_the_others_their_numbers",
        "arrays that lie about themselves": "test_arrays_that_lie_about_themselves_are_refused",
        "a status that says running after the end": "test_a_server_that_ends_is_not_running",
        "a site that grows in the middle": "test_a_site_that_took_part_keeps_the_weight_it_began_with",
        "names of files in errors": "test_a_site_keeps_the_text_of_its_errors",
    },
    "test_names": {
        "a second node under a live name": "test_a_second_node_under_a_live_name_is_refused",
    },
    "test_keys": {
        "private keys of sites at the server": "test_the_server_has_no_private_key_of_a_site",
    },
    "test_resident": {
        "a resident's socket": "test_nobody_else_reaches_the_socket_however_deep_its_folder_is",
    },
    "test_site_data": {
        "data that are not scaled": "test_data_that_are_not_scaled_are_refused_with_the_reason",
    },
    "test_rollback": {
        "rounds that should not have happened": "test_a_federation_that_went_back_ends_as_if_nothing_was",
    },
    "test_real": {
        "eight busy loops": "test_a_machine_that_is_far_too_busy_still_finishes",
        "another's name, a size of 10^12": "test_who_claims_another_name_or_a_size_beyond_the_agreed_changes_nothing",
        "nonsense asked of sites": "test_a_server_that_asks_for_nonsense_hears_numbers_and_nothing_else",
        "a payload of another size": "test_a_tampered_payload_is_refused_and_named",
        "a run that waits to be taken up": "test_a_killed_server_resumes_and_a_restarted_site_goes_on",
        "a site that weighs too much": "test_what_bounds_one_site_does_the_same_in_a_simulation",
    },
    "test_resume": {
        "a power cut while keys are registered": "test_a_registration_that_was_cut_off_is_done_anew",
    },
    "test_deadlines": {
        "a task asked twice": "test_what_is_asked_again_is_not_trained_again",
        "a restart": "test_after_a_restart_the_server_waits_for_those_who_were_there",
        "a full disk at the server": "test_a_full_disk_is_waited_for_and_costs_nothing",
        "a full disk at a site": "test_an_answer_that_cannot_be_kept_is_sent_all_the_same",
        "half files": "test_half_a_line_and_half_a_file_are_not_left_behind",
        "a bad answer that comes last": "test_an_answer_that_cannot_be_read_does_not_cost_its_site_the_next_round",
        "a task that cannot be sent": "test_a_task_that_cannot_be_sent_now_is_sent_later",
    },
    "test_audit_trail": {
        "what an error says": "test_of_an_error_the_code_leaves_and_nothing_else",
    },
    "test_guarded_processes": {
        "a full disk under a log": "test_a_full_disk_does_not_end_a_process",
        "logs that are moved away": "test_a_log_that_is_moved_away_is_begun_anew",
    },
    "test_clocks": {
        "a clock that is off": "test_a_clock_that_is_off_is_named",
    },
    "test_agreement_versions": {
        "a stolen site's rows after it left": "test_nothing_of_who_has_left_stays_at_the_server",
        "thousands of levels": "test_a_file_of_thousands_of_levels_is_refused_in_a_line_and_no_newer_version",
    },
}

# What the hostile member makes of its answers before it signs them, round by round; in the others it is honest.
TAMPERED = """

def tampered(packed):
    note = json.loads(packed.text)["note"]
    round, text, buffers = note.get("round"), packed.text, packed.buffers
    if round is None:
        return packed
    if "seconds" not in note:  # the farewell
        note["received"] = {**note["received"], "samples": 0, "correct": 0}
        return Packed({}, json.dumps({"tensors": [], "note": note}))
    if round == 2:
        text = text.replace('"seconds": ', '"more": ' + "9" * 5000 + ', "seconds": ', 1)
    if round == 3:
        text = text.replace('"loss": ', '"loss": NaN, "l": ', 1)
    if round == 4:
        note = {"round": 4, "diverged": False, "x": {"diverged": True}}
        text, buffers = json.dumps({"tensors": [], "note": note}), {}
    if round == 5:
        whole = json.loads(text)
        whole["tensors"][0][0] = "slot.model\\n2026-01-01 00:00:00,000 INFO all is well"
        text = json.dumps(whole)
    return Packed(buffers, text)
"""
# What it makes of Flower's records of them.
LYING_ARRAYS = """

_honest = as_records


def as_records(packed):
    import json

    found = _honest(packed)
    round = None if len(packed.text) > 4000 else json.loads(packed.text)["note"].get("round")
    for array in found["arrays"].values():
        if round == 6:
            array.data = b"\\x93NUMPY\\x01\\x00\\x05\\x00{'a'"
        if round == 7:
            file = io.BytesIO()
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (10**17,)})
            array.data = file.getvalue() + b"abc"
        if round == 8:
            array.data = array.data[: len(array.data) // 2]
    return found
"""
ATTACKED = range(2, 9)  # its rounds
MORE = 12  # rounds from the extension to the end: some are over before the server has heard of it


@pytest.mark.parametrize("module", TRIED)
def test_every_attack_of_the_list_has_its_test(module: str) -> None:
    found = importlib.import_module(f"tests.deployment.{module}")
    assert [what for what, test in TRIED[module].items() if not hasattr(found, test)] == []


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A federation in its second round, with a hostile member."""
    found = Town(tmp_path_factory.mktemp("attacked"), few_digits(*SITES, LATER))
    training = {"method": "fedper", "model": "mlp", "rounds": 400, "epochs": 1, "checkpoints": 400}
    waiting = {"least_sites": 2, "gather": 300.0, "deadline": 600.0}
    agreement = Agreement(name="fed", sites=SITES, shape=(1, 8, 8), classes=10, **training, **waiting)
    found.agree(agreement, ["127.0.0.1"])
    (found.server / "checkpoints").mkdir(parents=True)
    (found.server / "checkpoint.safetensors.partial").write_bytes(b"half")
    try:
        found.start("server", f"federation server fed --port {found.port}")
        for site in ("site-a", "site-b"):
            found.connect(site)
        found.connect(HOSTILE, before=tampered_library(found.folder / "library", TAMPERED, LYING_ARRAYS))
        assert eventually(lambda: len(found.rounds()) >= 1, LIMIT), found.said("server")
        yield found
    finally:
        found.close()


def come_to(town: Town, round: int) -> None:
    """Wait until a round is over, which the server must live to see."""
    reached = eventually(lambda: len(town.rounds()) >= round or town.ended("server") is not None, LIMIT)
    assert reached, town.said("server")
    assert town.ended("server") is None, town.said("server")


def outsider(town: Town, *words: str) -> dict[str, Any]:
    """What Flower's own command line gets from the port that the network sees."""
    home = town.folder / "outsider"
    home.mkdir(exist_ok=True)
    trust = {"root-certificates": str(town.folder / "fed" / "keys" / "ca.pem")}
    address = f"127.0.0.1:{town.port}"
    (home / "config.toml").write_text(
        tomli_w.dumps({"superlink": {"default": "x", "x": {"address": address, **trust}}})
    )
    command = [flower_command("flwr"), *words, "--format", "json"]
    done = subprocess.run(command, env=environment(home), cwd=home, capture_output=True, text=True, timeout=PATIENCE)
    return dict(json.loads(done.stdout))


def flood(town: Town, path: str) -> None:
    """Half a gigabyte to a path, from somebody without a key."""
    trust = ssl.create_default_context(cafile=str(town.folder / "fed" / "keys" / "ca.pem"))
    connection = http.client.HTTPSConnection("127.0.0.1", town.port, timeout=PATIENCE, context=trust)
    with suppress(OSError):  # it is closed under its hands
        connection.request("POST", path, (bytes(1 << 20) for _ in range(500)), {}, encode_chunked=True)
    connection.close()


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.xdist_group("red team")
def test_nothing_gets_anywhere(town: Town, tmp_path: Path) -> None:
    # From outside.
    evil = tmp_path / "evil"
    write_app(evil, Agreement(name="evil", sites=("a",), shape=(4,), classes=2))
    assert not outsider(town, "run", str(evil)).get("success")
    make_site_key(tmp_path / "stranger")
    register = ("supernode", "register", str(tmp_path / "stranger.pub"), "x", "--name", "site-a")
    assert not outsider(town, *register).get("success")
    for path in ("/v1/fleet/push-object", "/v1/control/start-run", "/"):
        flood(town, path)
    refused = {(line["path"], line["reason"]) for line in town.audit() if line["event"] == "refused"}
    for path in ("/v1/control/start-run", "/v1/control/register-node", "/"):
        assert (path, "not for sites") in refused
    assert ("/v1/fleet/push-object", "not signed by any key") in refused

    # Somebody who has copied site-a's folder joins beside it.
    shutil.copytree(town.folder / "fed" / "sites" / "site-a", tmp_path / "copied" / "site-a", ignore=no_sockets)
    town.connect("site-a", more=f"--state {tmp_path / 'copied'}", name="thief")
    assert eventually(lambda: "does not take this site" in town.said("thief"), LIMIT), town.said("thief")
    town.end("thief")

    # Logs are moved away.
    for log in (*town.server.glob("*.log"), town.server / "log.txt"):
        log.rename(log.with_name(f"{log.name}.1"))

    last = max(len(town.rounds()), *ATTACKED) + 1
    come_to(town, last + 1)  # a round's line is written before its checkpoint, and both before the next
    assert not (town.server / "checkpoint.safetensors.partial").exists()
    lines = town.rounds()[:last]
    assert [line.round for line in lines] == list(range(1, last + 1))
    for line in lines:
        assert {"site-a", "site-b"} <= set(note_of(line).answered), line
        assert (HOSTILE in note_of(line).answered) == (line.round not in ATTACKED), (line, town.said("server"))
    logged = "".join(path.read_text() for path in town.server.glob("log.txt*"))
    assert "\n2026-01-01 00:00:00,000 INFO all is well" not in logged
    assert all(town.ended(site) is None for site in SITES)
    undisturbed(town, last, tmp_path / "undisturbed")


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.xdist_group("red team")
def test_a_running_federation_is_extended_and_nobody_is_restarted(town: Town) -> None:
    come_to(town, max(ATTACKED))
    done = len(town.rounds())
    # The sites accept the next version one after the other, while the server goes on.
    terms = f"--rounds {done + MORE} --remove site-b --add {LATER} --term gather=600"
    assert "site-b is no site any more" in town.run(f"federation extend fed {terms}")
    for site in ("site-a", HOSTILE):
        town.run(f"federation join fed --name {site} --changed")
    town.join(LATER)
    town.connect(LATER)

    stay = {"site-a", HOSTILE, LATER}
    assert eventually(lambda: town.ended("server") is not None, LIMIT), town.said("server")
    assert town.ended("server") == 0, town.said("server")
    assert town.status()["state"] == "finished"
    lines = town.rounds()
    assert lines[-1].round == done + MORE
    assert set(note_of(lines[-1]).answered) == stay
    assert all(town.ended(site) is None for site in stay), "no client was restarted"
    assert "version 2 of the agreement takes over" in (town.server / "log.txt").read_text()
    assert "site-b has left: all that the SuperLink kept is forgotten" in town.said("server")
    events = town.audit()
    versions = [line["version"] for line in events if line["event"] == "started"]
    assert (versions[0], versions[-1]) == (1, 2)
    first = next(line.round for line in lines if "site-b" not in note_of(line).asked)
    refused = [line for line in events if line["event"] == "refused"]
    assert any("a key that the federation does not know" in line["reason"] for line in refused), "site-b tries on"
    assert all("site-b" not in note_of(line).asked for line in lines if line.round >= first)
    # The hostile member's farewell counts no samples: it has no score, and the others have theirs.
    found = json.loads((town.server / "summary.json").read_text())["finished"]
    assert {site for site, score in found.items() if score is not None} == stay - {HOSTILE}


def no_sockets(folder: str, names: list[str]) -> list[str]:
    """Files that cannot be copied."""
    return [name for name in names if name.endswith(".socket")]


def undisturbed(town: Town, rounds: int, folder: Path) -> None:
    """The honest sites have what they would have if the hostile one had just been silent."""
    agreement = Agreement.read(town.folder / "fed" / "federation.toml")
    torch.set_num_threads(1)
    together = Together(agreement, folder, few_digits(*SITES))
    together.admit()
    for round in range(1, rounds + 1):
        together.round(silent=(HOSTILE,) if round in ATTACKED else ())
    state = load_tensors(town.server / "checkpoints" / f"{rounds:05d}.safetensors")[0]
    assert torch.equal(state["slot.model.shared"], together.server.federation["model"].shared)
