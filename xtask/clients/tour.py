"""What both tours share: stops of a tour, and a look at the server's slots."""

import json
import sys
import time
import traceback
import urllib.request

URL, KEYED_URL, KEY = sys.argv[1:4]
QUESTION = "What is 27 + 45?"
ANSWER = "27 + 45 = 72."
NUMBER = {"type": "integer", "minimum": 0, "maximum": 999}
ADD = {
    "type": "object",
    "properties": {"a": NUMBER, "b": NUMBER},
    "required": ["a", "b"],
    "additionalProperties": False,
}
PATIENCE_S = 60

_stops = []


def stop(function):
    """Makes a function a stop of the tour."""
    _stops.append(function)
    return function


def until_idle():
    """Waits until no slot is taken: a client that went away must free its own."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        with urllib.request.urlopen(URL + "/health") as reply:
            health = json.load(reply)
        if health["active"] == 0 and health["queued"] == 0:
            return
        time.sleep(0.02)
    raise AssertionError(f"still busy: {health}")


def raises(kind, call):
    """The error of `call`, which must be of `kind`."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def check_sum(arguments):
    """Arguments that keep to the schema of `add`."""
    assert set(arguments) == {"a", "b"}, arguments
    assert all(isinstance(value, int) for value in arguments.values()), arguments


def tour():
    """Goes to every stop; the exit code says whether one failed."""
    failed = []
    for function in _stops:
        try:
            function()
            print(f"ok      {function.__name__}")
        except Exception:
            failed.append(function.__name__)
            print(f"FAILED  {function.__name__}")
            traceback.print_exc(limit=-6, file=sys.stdout)
    print(f"{len(_stops) - len(failed)} of {len(_stops)} stops")
    sys.exit(1 if failed else 0)
