"""Flower's processes on this machine: a server and devices, which speak TLS over the network."""

import contextlib
import datetime
import ipaddress
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

BIN = Path(sys.executable).parent
_SECONDS = 220
APP = Path(__file__).parents[2] / "examples" / "devices"

_REGISTER = """
import sys
from flwr.cli.app import app
for key in sys.argv[1:]:
    app(["supernode", "register", key, "here"], standalone_mode=False)
"""
"""`flwr supernode register KEY here` for each key; a process for each takes some seconds."""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def certificates(folder: Path) -> None:
    """Writes ca.pem, server.pem and server.key for 127.0.0.1."""
    now = datetime.datetime.now(datetime.UTC)

    def made(name: str, key: ec.EllipticCurvePrivateKey, issuer: str, signer, ca: bool):
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        common = [
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, n)]) for n in (name, issuer)
        ]
        builder = (
            x509.CertificateBuilder()
            .subject_name(common[0])
            .issuer_name(common[1])
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    authority, server = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    (folder / "ca.pem").write_bytes(made("test", authority, "test", authority, True))
    (folder / "server.pem").write_bytes(made("server", server, "test", authority, False))
    (folder / "server.key").write_bytes(
        server.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


class Flower:
    """A server and its devices; a context manager that ends every process it started.

    Args:
        folder: for keys, logs and Flower's own files.
        people: number of devices, each the node of one person.
        registered: people whose keys are registered; None: the server asks for no keys.
        trusted: file with the keys whose signature devices ask of an app; None: they ask for none.
    """

    def __init__(
        self,
        folder: Path,
        people: int,
        registered: Sequence[int] | None = None,
        trusted: Path | None = None,
    ) -> None:
        self.folder, self.people = folder, people
        self._registered, self._trusted = registered, trusted
        self._end = time.monotonic() + _SECONDS
        self._processes: dict[str, subprocess.Popen] = {}
        self._port, *self._ports = free_ports(people + 1)
        home = folder / "home"
        home.mkdir()
        certificates(folder)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self._port}"\nroot-certificates = "{folder / "ca.pem"}"\n'
        )
        self._environment = os.environ | {
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    def __enter__(self) -> "Flower":
        tls = ["server.pem", "server.key", "ca.pem"]
        cert, key, ca = (str(self.folder / name) for name in tls)
        files = [f"--ssl-certfile={cert}", f"--ssl-keyfile={key}", f"--ssl-ca-certfile={ca}"]
        asked = [] if self._registered is None else ["--enable-supernode-auth"]
        given = [*asked, "--disable-runtime-dependency-installation"]
        self._start("server", ["flower-superlink", f"--port={self._port}", *files, *given])
        self.wait(lambda: self.log("server").count("startup complete"))
        if self._registered is not None:
            for person in range(self.people):
                self._make_key(person)
            public = [self.folder / f"person-{person}.key.pub" for person in self._registered]
            self._done([sys.executable, "-c", _REGISTER, *public])
        for person, port in enumerate(self._ports):
            node = ["flower-supernode", f"--superlink=127.0.0.1:{self._port}", f"--port={port}"]
            config = [f"--root-certificates={ca}", f"--node-config=person={person}"]
            if self._registered is not None:
                config.append(
                    f"--auth-supernode-private-key={self.folder / f'person-{person}.key'}"
                )
            if self._trusted is not None:
                config.append(f"--trusted-entities={self._trusted}")
            self._start(f"device-{person}", [*node, *config])
        return self

    def __exit__(self, *_error: object) -> None:
        for name in self._processes:
            self.kill(name)

    def _make_key(self, person: int) -> None:
        """Writes the key of a person's device, as `ssh-keygen -t ecdsa -b 384` does."""
        key = ec.generate_private_key(ec.SECP384R1())
        place = self.folder / f"person-{person}.key"
        no_password = serialization.NoEncryption()
        openssh = serialization.PrivateFormat.OpenSSH
        place.write_bytes(key.private_bytes(serialization.Encoding.PEM, openssh, no_password))
        public = key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        place.with_suffix(".key.pub").write_bytes(public)

    def _start(self, name: str, words: list[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [BIN / words[0], *words[1:]],
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """kill -9 of a process and its children, some of which have sessions of their own."""
        process = self._processes[name]
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.wait()

    def run(self, settings: dict[str, object]) -> None:
        """`flwr run` of the app, with settings."""
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        (self.folder / "settings.toml").write_text("\n".join(lines) + "\n")
        self._done(
            [BIN / "flwr", "run", APP, "here", "--run-config", self.folder / "settings.toml"]
        )

    def _done(self, command: list[str | Path]) -> None:
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, true: Callable[[], object]) -> None:
        while not true():
            # Before pytest's own limit, after which nothing would end the processes.
            assert time.monotonic() < self._end, self.log("server")[-3000:]
            time.sleep(0.05)
