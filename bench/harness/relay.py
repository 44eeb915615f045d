"""Carries packets between the interfaces of harness/network.py, each after the same delay.

    relay.py DELAY_MS FD:ADDRESS...      runs until its parent ends

FD is a TUN device in some network namespace (with a virtio header, so that a packet may be a 64 KiB segment),
ADDRESS the IPv4 address behind it. A kernel with sch_netem would do this alone; many, such as those of small virtual
machines, are built without.
"""
import collections
import ctypes
import os
import select
import signal
import socket
import sys
import time

HEADER = 10  # virtio_net_hdr
PR_SET_PDEATHSIG = 1


def main():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    delay = float(sys.argv[1]) / 1000
    ports = {}
    for argument in sys.argv[2:]:
        fd, address = argument.split(":")
        ports[socket.inet_aton(address)] = int(fd)
        os.set_blocking(int(fd), False)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # its delay must not depend on the load
    except OSError:
        pass
    poll = select.epoll()
    for fd in ports.values():
        poll.register(fd, select.EPOLLIN)
    waiting = collections.deque()  # (when, fd, packet), in the order of arrival, which is that of leaving
    while True:
        left = waiting[0][0] - time.monotonic() if waiting else None
        # epoll counts in whole milliseconds: what is due sooner is slept for.
        if left is not None and 0 < left < 0.001:
            time.sleep(min(left, 0.0002))
        for fd, _ in poll.poll(-1 if left is None else max(0, left - 0.001)):
            read(fd, ports, waiting, time.monotonic() + delay)
        now = time.monotonic()
        while waiting and waiting[0][0] <= now:
            _, fd, packet = waiting.popleft()
            try:
                os.write(fd, packet)
            except OSError:
                pass  # a full queue or an interface that is going: a lost packet, as on any link


def read(fd, ports, waiting, when):
    for _ in range(32):
        try:
            packet = os.read(fd, 70000)
        except BlockingIOError:
            return
        to = ports.get(packet[HEADER + 16:HEADER + 20])
        if to is not None:
            waiting.append((when, to, packet))


if __name__ == "__main__":
    main()
