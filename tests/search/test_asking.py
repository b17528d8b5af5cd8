"""The two ways to a language model, over real sockets and pipes: what is tried again, what not, what is never said."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripted import serving

from kernelworks.machine import environment
from kernelworks.search.model import way_to
from kernelworks.search.model.ask import MOST_BYTES, NoAnswer, Patience
from kernelworks.search.model.command import Command
from kernelworks.search.model.endpoint import Endpoint, asked_wait

SOON = Patience(seconds=60.0, tries=4, wait=0.01, most_s=0.05)
ASK = [{"role": "system", "content": "rules"}, {"role": "user", "content": "a kernel, please: é"}]


def asked(steps: list[dict[str, Any]], folder: Path, patience: Patience = SOON, **more: Any) -> tuple[Any, Any]:
    """The reply, or what was raised; and the endpoint with its requests."""
    with serving(steps, folder) as server:
        try:
            return Endpoint(server.url, "some-model", patience=patience, **more).ask(ASK), server
        except NoAnswer as error:
            return error, server


# ---------------------------------------------------------------- an endpoint


def test_a_reply_comes_with_its_tokens_and_the_request_is_a_completion(tmp_path: Path) -> None:
    reply, server = asked([{"reply": "a text", "tokens": 42}], tmp_path, key="s3cret", temperature=0.5, most_tokens=99)
    assert [one.text for one in reply.texts] == ["a text"] and reply.tokens["completion_tokens"] == 42
    assert reply.texts[0].ended == "stop" and reply.failed == ()
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions" and request["headers"]["Authorization"] == "Bearer s3cret"
    assert request["body"] == {"model": "some-model", "messages": ASK, "temperature": 0.5, "max_tokens": 99}


def test_choices_are_all_read_and_no_key_is_sent_where_there_is_none(tmp_path: Path) -> None:
    reply, server = asked([{"reply": ["one", "two"]}], tmp_path)
    assert [one.text for one in reply.texts] == ["one", "two"]
    assert "Authorization" not in server.requests[0]["headers"]


def test_what_may_pass_is_asked_again(tmp_path: Path) -> None:
    steps = [
        {"status": 429, "headers": {"Retry-After": "0"}, "body": '{"error": {"message": "slow down"}}'},
        {"status": 500, "body": "<html>no</html>"},
        {"half": "x" * 5000},
        {"drop": True},
        {"raw": "<html>a proxy's page</html>"},
        {"raw": '{"error": {"message": "overloaded"}}'},
        {"reply": "at last"},
    ]
    reply, server = asked(steps, tmp_path, Patience(seconds=60, tries=7, wait=0.01, most_s=0.05))
    assert reply.texts[0].text == "at last" and len(server.requests) == 7
    said = [one.said for one in reply.failed]
    assert said[0] == "status 429: slow down" and said[1] == "status 500: <html>no</html>"
    assert "broke off" in said[2] and "connection" in said[3]
    assert "no JSON" in said[4] and said[5] == "a reply without choices: overloaded"


def test_it_gives_up_after_as_many_tries_as_there_are(tmp_path: Path) -> None:
    error, server = asked([{"status": 503}], tmp_path)
    assert isinstance(error, NoAnswer) and not error.permanent
    assert len(server.requests) == SOON.tries == len(error.failed)
    assert str(error).endswith("did not answer in 4 tries: status 503")


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ({"status": 401, "body": '{"error": {"message": "wrong key s3cret"}}'}, "status 401: wrong key [key]"),
        ({"status": 404, "body": '{"detail": "no such model"}'}, "status 404: no such model"),
        (
            {"status": 429, "body": '{"error": {"message": "pay", "type": "insufficient_quota"}}'},
            "status 429: pay",
        ),
        ({"status": 302, "headers": {"Location": "http://elsewhere/v1"}}, "sends on to 'http://elsewhere/v1'"),
    ],
    ids=["key", "name", "money", "redirect"],
)
def test_what_a_setting_must_change_first_is_asked_once(step: dict[str, Any], said: str, tmp_path: Path) -> None:
    error, server = asked([step], tmp_path, key="s3cret")
    assert isinstance(error, NoAnswer) and error.permanent and said in str(error)
    assert "s3cret" not in str(error) and len(server.requests) == 1


def test_an_answer_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    error, _ = asked([{"late": 30}], tmp_path, Patience(seconds=0.5, tries=2, wait=0.01))
    assert isinstance(error, NoAnswer) and "no answer within 0.5 s" in str(error)


def test_an_answer_that_has_no_end_is_not_read_to_it(tmp_path: Path) -> None:
    error, _ = asked([{"raw": "x" * (MOST_BYTES + 10)}], tmp_path, Patience(seconds=60, tries=1))
    assert isinstance(error, NoAnswer) and "more than 8 MiB" in str(error)


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with socket.socket() as held:  # bound, and not listened at
        held.bind(("127.0.0.1", 0))
        way = Endpoint(f"http://127.0.0.1:{held.getsockname()[1]}", "m", patience=Patience(tries=2, wait=0.01))
        with pytest.raises(NoAnswer, match=r"in 2 tries: no connection: .*refused"):
            way.ask(ASK)


def test_waits_double_and_what_is_asked_for_is_the_least() -> None:
    patience = Patience(wait=1.0, most_s=20.0)
    assert 0.75 <= patience.before(0, None) <= 1.25 and 3 <= patience.before(2, None) <= 5
    assert patience.before(0, 7.0) == 7.0 and patience.before(0, 1000.0) == 20.0 and patience.before(99, None) <= 20.0


# ---------------------------------------------------------------- a command


def ran(code: str, patience: Patience = SOON) -> Command:
    return Command(f"{sys.executable} -c '{code}'", patience=patience)


def test_a_command_reads_the_prompt_and_writes_the_answer() -> None:
    reply = ran("import sys; print(sys.stdin.read().upper())").ask(ASK)
    assert reply.texts[0].text.strip() == "RULES\n\nA KERNEL, PLEASE: É"


def test_a_prompt_that_is_not_read_and_one_that_is_large_hold_up_nothing() -> None:
    assert ran('print("done")').ask([{"role": "user", "content": "x" * (1 << 20)}]).texts[0].text == "done\n"
    reply = ran("import sys; print(len(sys.stdin.read()))").ask([{"role": "user", "content": "y" * (1 << 20)}])
    assert reply.texts[0].text == f"{(1 << 20) + 1}\n"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ('import sys; sys.stderr.write("no model\\n"); sys.exit(3)', "exited with code 3: no model"),
        ("import os; os.abort()", "ended by signal 6"),
        ("pass", "wrote nothing"),
        (f"import sys; sys.stdout.write(chr(120) * {MOST_BYTES + 10})", "wrote more than 8 MiB"),
    ],
    ids=["code", "signal", "nothing", "too much"],
)
def test_a_command_that_fails_is_run_again_and_then_said(code: str, said: str) -> None:
    with pytest.raises(NoAnswer) as error:
        ran(code, Patience(tries=2, wait=0.01)).ask(ASK)
    assert said in str(error.value) and len(error.value.failed) == 2


def test_a_command_that_takes_too_long_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script, started = tmp_path / "slow.sh", tmp_path / "started"
    script.write_text(f"sleep 600 &\necho $! > {started}\nsleep 600\n", encoding="utf-8")
    with pytest.raises(NoAnswer, match="not done within 2 s"):
        Command(f"sh {script}", patience=Patience(seconds=2, tries=1)).ask(ASK)
    assert gone(int(started.read_text()))


def test_what_a_command_leaves_running_is_ended(tmp_path: Path) -> None:
    code = (
        'import subprocess, sys; child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]); '
        "print(child.pid)"
    )
    begin = time.monotonic()
    reply = ran(code).ask(ASK)
    assert gone(int(reply.texts[0].text)) and time.monotonic() - begin < 60


def gone(pid: int) -> bool:
    for _ in range(200):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "through an endpoint or through a command, got neither"),
        ({"endpoint": "http://x/v1", "command": "cat", "model": "m"}, "got both"),
        ({"endpoint": "http://x/v1"}, "model must name a model at the endpoint, got None"),
        ({"endpoint": "x:80/v1", "model": "m"}, "endpoint must be http://HOST[:PORT][/PATH] or https://"),
        ({"endpoint": "http://x:99999/", "model": "m"}, "got 'http://x:99999/'"),
        ({"endpoint": "http://x/v1?a=b", "model": "m"}, "got 'http://x/v1?a=b'"),
        ({"endpoint": "http://me:s3cret@x/v1", "model": "m"}, "got one with a user"),
        ({"endpoint": "http://x/v1", "model": "m", "temperature": 3.0}, "temperature must be from 0 to 2, got 3.0"),
        ({"endpoint": "http://x/v1", "model": "m", "most_tokens": 0}, "most_tokens must be a whole number from 1"),
        ({"endpoint": "http://x/v1", "model": "m", "key": "KW_NOWHERE"}, "'KW_NOWHERE' is unset or empty"),
        ({"command": "no-such-program-here --x"}, "'no-such-program-here' is not"),
        ({"command": "  "}, "command must name a program and its arguments, got '  '"),
        ({"command": "cat 'x"}, "command cannot be split into words"),
        ({"command": "cat", "model": "m"}, "model is for an endpoint"),
    ],
)
def test_settings_are_named_with_what_came(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as error:
        way_to(**settings)
    assert said in str(error.value) and "s3cret" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"seconds": float("nan")}, {"tries": 0}, {"wait": -1.0}])
def test_patience_is_a_number(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Patience(**wrong)


def test_a_key_is_read_from_the_variable_that_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_SERVER", "from-there")
    with serving([{"reply": "x"}], tmp_path) as server:
        way_to(endpoint=f"{server.url}/chat/completions", model="m", key="MY_SERVER").ask(ASK)
        assert server.requests[0]["headers"]["Authorization"] == "Bearer from-there"
        assert server.requests[0]["path"] == "/v1/chat/completions"
    assert "MY_SERVER" not in environment.variables_without_secrets() and "MY_SERVER" in environment.variables()
    monkeypatch.setenv("SOME_API_KEY", "x")
    assert "SOME_API_KEY" not in environment.variables_without_secrets()
    assert environment.variables_without_secrets()["PATH"] == os.environ["PATH"]


def test_a_key_that_no_header_takes_is_refused_without_being_said() -> None:
    with pytest.raises(ValueError, match="printable ASCII") as error:
        Endpoint("http://x/v1", "m", key="se\ncret")
    assert "cret" not in str(error.value).replace("secret", "")


def test_half_characters_become_whole_ones(tmp_path: Path) -> None:
    body = json.dumps({"choices": [{"message": {"content": "a \ud800 b"}}]})
    reply, _ = asked([{"raw": body}], tmp_path)
    reply.texts[0].text.encode()
    assert reply.texts[0].text == "a ? b"


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("3", 3, 3), ("-1", 0, 0), ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0), ("Wed, 21 Oct 2099 07:28:00 GMT", 1e9, 1e10)],
)
def test_a_wait_is_a_number_or_a_date(text: str, low: float, high: float) -> None:
    wait = asked_wait(text)
    assert wait is not None and low <= wait <= high
    assert asked_wait("soon") is None and asked_wait("") is None
