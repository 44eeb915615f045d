"""Network namespaces whose links have a rate and a delay.

    with Network(hosts=2, rate="1gbit", delay_ms=1) as network:
        network.prefix(0)   # ["ip", "netns", "exec", "hr1234-0"]
        network.address(0)  # of a listener in it; network.address() is this machine's side

Each host is a namespace with one interface, a TUN device: what leaves it is shaped to `rate` by tc (tbf), and a relay
(relay.py) carries it to the others `delay_ms` later. This machine's own side, for the coordinator and clients, has the
delay but no shaping. 198.18.0.0/24 is set aside for benchmarks (RFC 2544). Needs root and iproute2.
"""
import fcntl
import os
import pathlib
import shutil
import struct
import subprocess
import sys

from harness.measure import BenchError

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
TUN_F_CSUM, TUN_F_TSO4 = 0x01, 0x02
QUEUE = "2mb"  # of a port that shapes, about as switches have


def missing():
    """Why no namespaces can be made here; empty: they can."""
    if os.geteuid() != 0:
        return "needs root, for network namespaces"
    if not shutil.which("ip") or not shutil.which("tc"):
        return "needs ip and tc: apt-get install iproute2"
    try:
        with Network(1, "1gbit", 0):
            return ""
    except (OSError, BenchError) as error:  # a container without rights, a kernel without tun or tbf
        return f"cannot shape a network namespace here: {error}"


class Network:
    def __init__(self, hosts, rate, delay_ms):
        self.hosts, self.rate, self.delay_ms = hosts, rate, delay_ms
        self.base = f"hr{os.getpid()}"
        self.fds, self.relay = [], None

    def name(self, host):
        return f"{self.base}-{host}"

    def prefix(self, host):
        return ["ip", "netns", "exec", self.name(host)]

    def address(self, host=None):
        return "198.18.0.254" if host is None else f"198.18.0.{host + 1}"

    def __enter__(self):
        try:
            for host in range(self.hosts):
                run("ip", "netns", "add", self.name(host))
                self._attach(self.name(host), self.address(host), self.name(host))
                run("ip", "-n", self.name(host), "link", "set", "lo", "up")
                run("tc", "-n", self.name(host), "qdisc", "add", "dev", self.name(host), "root", "tbf",
                    "rate", self.rate, "burst", "96kb", "limit", QUEUE)
            self._attach(None, self.address(), self.base)
            ports = [f"{fd}:{address}" for fd, address in self.fds]
            self.relay = subprocess.Popen(
                [sys.executable, str(pathlib.Path(__file__).with_name("relay.py")), str(self.delay_ms), *ports],
                pass_fds=[fd for fd, _ in self.fds])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.relay is not None:
            self.relay.kill()
            self.relay.wait()
        for fd, _ in self.fds:
            os.close(fd)  # and with it the interface
        for host in range(self.hosts):
            subprocess.run(["ip", "netns", "del", self.name(host)], capture_output=True, check=False)

    def _attach(self, namespace, address, device):
        fd = os.open("/dev/net/tun", os.O_RDWR)
        self.fds.append((fd, address))
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), IFF_TUN | IFF_NO_PI | IFF_VNET_HDR))
        fcntl.ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)
        ip = ["ip"]
        if namespace:
            run("ip", "link", "set", device, "netns", namespace)
            ip += ["-n", namespace]
        run(*ip, "addr", "add", f"{address}/24", "dev", device)
        run(*ip, "link", "set", device, "mtu", "1500", "txqueuelen", "1000", "up")


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise BenchError(f"{' '.join(command)}: {done.stderr.strip()}")
