"""A TCP proxy in front of one address, which can pass, drop, reset or delay what goes through it.

    proxy = Proxy("127.0.0.1:7071")   # or "unix:/path"; its own is proxy.address
    proxy.set("drop")                 # bytes vanish, both ways, and nobody is told: a pulled cable
    proxy.set("reset")                # connections end at once, new ones too
    proxy.set("delay", 0.2)           # everything takes so many seconds longer
    proxy.set("pass")
"""
import heapq
import itertools
import selectors
import socket
import struct
import threading
import time

CHUNK = 1 << 16
BACKLOG = 8 << 20  # bytes of one direction that wait; then reading pauses


class Flow:
    """One direction of one connection."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.pending = bytearray()
        self.waiting = 0    # bytes whose delay is not over
        self.ended = False  # the source has said all


class Proxy:
    def __init__(self, target):
        self.target = target
        self.mode, self.delay = "pass", 0.0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.listener.setblocking(False)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.wake_out, self.wake_in = socket.socketpair()
        self.wake_out.setblocking(False)
        self.selector = selectors.DefaultSelector()
        self.flows = {}    # socket it is read from → Flow
        self.due = []      # (when, number, flow, bytes)
        self.numbers = itertools.count()
        self.stopping = False
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(self.wake_out, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self.thread.start()

    def set(self, mode, delay=0.0):
        self.mode, self.delay = mode, delay
        self.wake_in.send(b".")

    def close(self):
        self.stopping = True
        self.wake_in.send(b".")
        self.thread.join()

    def _run(self):
        while not self.stopping:
            wait = max(0.0, self.due[0][0] - time.monotonic()) if self.due else 1.0
            for key, _ in self.selector.select(wait):
                self._ready(key.fileobj)
            if self.mode == "reset":
                self._reset_all()
            while self.due and self.due[0][0] <= time.monotonic():
                _, _, flow, data = heapq.heappop(self.due)
                flow.waiting -= len(data)
                self._deliver(flow, data)
            self._pump()
        self._reset_all()
        for each in (self.listener, self.wake_in, self.wake_out):
            each.close()
        self.selector.close()

    def _ready(self, ready):
        if ready is self.wake_out:
            ready.recv(CHUNK)
        elif ready is self.listener:
            self._accept()
        elif ready in self.flows:
            self._read(self.flows[ready])

    def _accept(self):
        client, _ = self.listener.accept()
        if self.mode == "reset":
            return abort(client)
        try:
            server = dial(self.target)
        except OSError:
            return abort(client)
        for one, other in ((client, server), (server, client)):
            one.setblocking(False)
            self.flows[one] = Flow(one, other)
            self.selector.register(one, selectors.EVENT_READ)

    def _read(self, flow):
        try:
            data = flow.source.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            return self._reset(flow.source)
        if not data:
            flow.ended = True
            self._unwatch(flow.source)
        elif self.mode == "drop":
            pass
        elif self.mode == "delay" or flow.waiting:
            flow.waiting += len(data)
            heapq.heappush(self.due, (time.monotonic() + self.delay, next(self.numbers), flow, data))
        else:
            self._deliver(flow, data)

    def _deliver(self, flow, data):
        if flow.source in self.flows and self.mode != "drop":
            flow.pending += data

    def _pump(self):
        for flow in list(self.flows.values()):
            if self.flows.get(flow.source) is not flow:
                continue  # reset since
            try:
                while flow.pending:
                    del flow.pending[:flow.target.send(flow.pending)]
            except BlockingIOError:
                heapq.heappush(self.due, (time.monotonic() + 0.002, next(self.numbers), flow, b""))
            except OSError:
                self._reset(flow.source)
                continue
            if len(flow.pending) + flow.waiting > BACKLOG:
                self._unwatch(flow.source)
            elif not flow.ended:
                self._watch(flow.source)
            if flow.ended and not flow.pending and not flow.waiting:
                back = self.flows.get(flow.target)
                if back is None or back.ended and not back.pending:
                    self._forget(flow.source, lambda end: end.close())
                else:
                    try:
                        flow.target.shutdown(socket.SHUT_WR)
                    except OSError:
                        self._reset(flow.source)

    def _watch(self, each):
        if each not in self.selector.get_map():
            self.selector.register(each, selectors.EVENT_READ)

    def _unwatch(self, each):
        if each in self.selector.get_map():
            self.selector.unregister(each)

    def _reset(self, each):
        self._forget(each, abort)

    def _forget(self, each, close):
        flow = self.flows.pop(each, None)
        if flow is None:
            return
        self.flows.pop(flow.target, None)
        for end in (flow.source, flow.target):
            self._unwatch(end)
            close(end)

    def _reset_all(self):
        for each in list(self.flows):
            self._reset(each)


def dial(address):
    if address.startswith("unix:"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(address.removeprefix("unix:"))
        return server
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=2)


def abort(each):
    """Closes with a reset where the socket knows one."""
    try:
        each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass
    each.close()
