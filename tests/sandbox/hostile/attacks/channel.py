"""Forging what the harness says to its worker, by guessing, or with its own nonce and function."""

from __future__ import annotations

from hostile.program import GRADING_OUTSIDE, HostileProgram, hostile, source

# Finds the harness, its way to send and its nonce in the frames below, wherever the answer is called from.
_CHANNEL = """
import gc, json, os, re, struct, sys
FD = 3
def frames():
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back
def find_harness():
    return next((one for frame in frames() for one in frame.f_locals.values() if hasattr(type(one), "_send")), None)
def find_nonce():
    values = vars(find_harness()).values() if find_harness() else ()
    return next((one for one in values if isinstance(one, bytes) and re.fullmatch(b"[0-9a-f]{32}", one)), b"0" * 32)
def frame(payload, nonce=None):
    payload = payload if isinstance(payload, bytes) else payload.encode()
    return (nonce or find_nonce()) + struct.pack("!I", len(payload)) + payload
def write(data):
    view = memoryview(data)
    while view: view = view[os.write(FD, view):]
def claim(*payloads):
    for payload in payloads: write(frame(payload))
    os._exit(0)
"""


def _forge(name: str, code: str, wanted: str = "secret") -> HostileProgram:
    return hostile(name, "forging the result channel", code, GRADING_OUTSIDE, wanted=wanted, prelude=_CHANNEL)


# Accepted if the tools of the others find what they look for.
REACH = source(_CHANNEL + "def f(i): return find_nonce() != b'0' * 32 and callable(find_harness()._send)")
PROGRAMS = (
    _forge("verdicts_on_every_descriptor", """
        for fd in range(3, 64):
            for text in (b'["done"]', b'{"passed": true}', b'\\x80\\x04\\x88.', b"passed\\n"):
                try: os.write(fd, text)
                except OSError: pass
        def f(i): return "x"
        """),
    _forge("verdicts_on_standard_output", """
        print("PASSED", "OK", '["done"]', '{"status": "passed", "exit": 0}', "1 passed in 0.01s", sep="\\n")
        def f(i): return "x"
        """),
    _forge("frame_with_a_guessed_nonce", """
        write(frame('["value",0,"x"]', b"0" * 32))
        def f(i): return "x"
        """),
    _forge("send_found_in_frames", """
        def f(i):
            send = find_harness()._send
            for text in ('["value",0,"passed"]', '["value",1,true]', '["done"]'): send(text)
            os._exit(0)
        """),
    _forge("send_found_by_the_collector", """
        def f(i):
            for one in gc.get_objects():
                if hasattr(type(one), "_send"):
                    for text in ('["value",0,"passed"]', '["value",1,true]', '["done"]'): one._send(text)
            os._exit(0)
        """),
    _forge("all_frames_sent_while_loading", """claim('["value",0,"x"]', '["value",1,"x"]', '["done"]')"""),
    _forge("only_the_closing_frame", """claim('["done"]')"""),
    _forge("verdict_as_a_value", """claim('["value",0,{"tuple":["passed"]}]', '["passed"]', '["done"]')"""),
    _forge("results_sent_twice", """
        def f(i):
            claim('["value",0,"x"]', '["value",0,"x"]', '["value",1,"x"]', '["value",1,"x"]', '["done"]')
        """),
    _forge("results_in_reverse", """claim('["value",1,"x"]', '["value",0,"x"]', '["done"]')"""),
    _forge("more_results_than_calls", """claim(*['["value",%d,"x"]' % n for n in range(1000)], '["done"]')"""),
    _forge("results_after_the_end", """claim('["done"]', '["value",0,"x"]', '["value",1,"x"]', '["done"]')"""),
    _forge("ready_twice", """claim('["ready"]', '["ready"]', '["done"]')"""),
    _forge("lying_positions", """claim('["value",false,"x"]', '["value",1.0,"x"]', '["done"]')"""),
    _forge("unknown_kinds", """claim('["passed"]', '["verdict",0,true]', '[]', 'null', '["done"]')"""),
    _forge("not_json", "claim(b'\\xff\\xfe{]', b'\\x00' * 100)"),
    _forge("json_constants", """claim('["value",0,NaN]', '["value",1,Infinity]', '["done"]')"""),
    _forge("broken_tags", """
        payloads = ('{"set":5}', '{"dict":[[1]]}', '{"dict":[1,2]}', '{"int":"zz"}', '{"bytes":"x"}', '{"complex":["a",1]}',
                    '{"complex":[1,2,3]}', '{"float":[]}', '{"tuple":{}}', '{"eval":"1"}', '{}', '{"int":"1","set":[]}', '{"set":null}')
        index = int.from_bytes(os.urandom(1), "big") % len(payloads)
        claim('["value",0,%s]' % payloads[index])
        """),
    _forge("nesting_of_frames", """claim('["value",0,' + '[' * 200_000 + ']' * 200_000 + ']')"""),
    _forge("nesting_of_tags", """claim('["value",0,' + '{"set":[' * 50_000 + ']}' * 50_000 + ']')"""),
    _forge("a_number_of_a_million_digits", """claim('["value",0,' + '9' * 1_000_000 + ']')"""),
    _forge("a_number_of_a_million_hex_digits", """claim('["value",0,{"int":"0x' + 'f' * 1_000_000 + '"}]', '["value",1,1]', '["done"]')""", "int"),
    _forge("a_number_beyond_the_floats", """claim('["value",0,1e999]', '["value",1,-1e999]', '["done"]')""", "float"),
    _forge("keys_that_all_hash_alike", """
        keys = ",".join('{"int":"%x"}' % (n * (2**61 - 1)) for n in range(20_000))
        claim('["value",0,{"set":[%s]}]' % keys, '["value",1,{"set":[1,2,3]}]', '["done"]')
        """, "set"),
    _forge("a_set_that_is_costly_to_sort", """
        def nest(depth): return '{"set":[%s]}' % ",".join(['{"tuple":[' * depth + '1' + ']}' * depth] * 300)
        claim('["value",0,{"set":[%s,%s,%s]}]' % ((nest(90),) * 3), '["value",1,{"set":[1,2,3]}]', '["done"]')
        """, "set"),
    _forge("a_set_with_elements_that_repeat", """claim('["value",0,{"set":[1,1,1]}]', '["value",1,{"set":[1,1,1]}]', '["done"]')""", "set"),
    _forge("length_beyond_the_data", """
        write(find_nonce() + struct.pack("!I", 0xFFFFFFFF) + b"[")
        os._exit(0)
        """),
    _forge("a_flood_of_frames", """
        write(frame('["value",0,"x"]') * 100_000)
        os._exit(0)
        """),
    _forge("a_flood_of_bytes", """
        for _ in range(40): write(b"x" * (1 << 20))
        os._exit(0)
        """),
    _forge("error_text_with_terminal_codes", """claim('["ended","load_error","\\\\u001b[2J\\\\u0000","\\\\u001b]0;x\\\\u0007%s"]' % ("y" * 1_000_000))"""),
    _forge("an_outcome_of_its_own", """claim('["ended","completed","",""]', '["ended","infrastructure","",""]')"""),
    _forge("end_that_claims_a_status", """claim('["ended","passed","",""]')"""),
    _forge("garbage_between_right_frames", """
        import threading
        def noise():
            for _ in range(2000): os.write(FD, b"x")
        threading.Thread(target=noise).start()
        def f(i): return "x"
        """),
    _forge("standard_output_over_the_channel", """
        os.dup2(1, 3)
        def f(i): return "x"
        """),
    _forge("channel_over_standard_output", """
        os.dup2(3, 1)
        print('["done"]', flush=True)
        def f(i): return "x"
        """),
    _forge("encoder_of_the_harness_replaced", """
        for frame in frames():
            if "_dumps" in frame.f_globals:
                frame.f_globals.update(_encode=lambda *_, **__: '"passed"', _dumps=lambda value: '["done"]')
        def f(i): return "x"
        """),
    _forge("end_of_the_harness_replaced", """
        kind = type(find_harness())
        kind._text_of, kind.end = lambda *_, **__: '["value",0,"x"]', lambda *_: os._exit(0)
        def f(i): return "x"
        """),
    _forge("both_sides_of_a_fork_answer", """
        def f(i):
            os.fork()
            return "x"
        """),
    _forge("child_claims_while_parent_sleeps", """
        import time
        def f(i):
            if os.fork() == 0: claim('["value",0,"x"]', '["value",1,"x"]', '["done"]')
            time.sleep(0.3)
            return "x"
        """),
    _forge("worker_socket_written_through_proc", """
        for fd in range(64):
            try:
                with open(f"/proc/{os.getppid()}/fd/{fd}", "wb", buffering=0) as channel: channel.write(b"\\0" * 64)
            except OSError: pass
        def f(i): return "x"
        """),
)  # fmt: skip
