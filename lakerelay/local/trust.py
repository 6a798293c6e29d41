"""The system's CA certificates as a Java trust store: a JDK from a wheel does not know those that the system's owner added."""

import ssl
import warnings
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.utils import CryptographyDeprecationWarning

_PASSWORD = "changeit"  # noqa: S105 — Java's customary one: a trust store holds nothing secret
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def options(store: Path) -> list[str]:
    """Write `store`; returns what makes Java use it: nothing when no system certificate was found, so that Java keeps its own."""
    certificates = _certificates()
    if not certificates:
        return []
    entries = [PKCS12Certificate(certificate, str(number).encode()) for number, certificate in enumerate(certificates)]
    store.write_bytes(serialize_java_truststore(entries, BestAvailableEncryption(_PASSWORD.encode())))
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStoreType=PKCS12", f"-Djavax.net.ssl.trustStorePassword={_PASSWORD}"]


def _certificates() -> list[x509.Certificate]:
    paths = ssl.get_default_verify_paths()
    found: dict[bytes, x509.Certificate] = {}
    files = [Path(paths.cafile)] if paths.cafile else sorted(Path(paths.capath).glob("*.pem")) if paths.capath else []
    for file in files:
        for certificate in _read(file):
            found[certificate.public_bytes(Encoding.DER)] = certificate
    return list(found.values())


def _read(file: Path) -> list[x509.Certificate]:
    """Those that cryptography can take; some old CA certificates break today's rules (a serial number of 0)."""
    certificates = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CryptographyDeprecationWarning)
        for block in file.read_text(errors="replace").split(_END)[:-1]:
            pem = block[block.find(_BEGIN) :] + _END
            try:
                certificates.append(x509.load_pem_x509_certificate(pem.encode()))
            except ValueError:
                continue
    return certificates
