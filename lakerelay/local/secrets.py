"""Generated passwords and keys: <folder>/secrets, mode 0700; each file 0600."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from lakerelay.config import Local


def folder(local: Local) -> Path:
    """Created when absent; the stack's folder is closed to others too, for logs and data tell as much as a password."""
    path = local.folder / "secrets"
    path.mkdir(parents=True, exist_ok=True)
    local.folder.chmod(0o700)
    path.chmod(0o700)
    return path


def read(local: Local, name: str, make: Callable[[], str] = lambda: secrets.token_urlsafe(24)) -> str:
    """The secret `name`, made on first use."""
    file = folder(local) / name
    if not file.exists():
        write(file, make())
    return file.read_text()


def source_password(local: Local) -> str:
    """The password of `source.user`, from the properties file that Connect reads it from too."""
    file = local.password_file
    if not file.exists():
        write(folder(local) / file.name, f"password={secrets.token_urlsafe(24)}\n")
    return file.read_text().strip().removeprefix("password=")


def write(file: Path, text: str) -> None:
    """Whole or not at all."""
    part = file.with_suffix(".part")
    with create(part) as opened:
        opened.write(text)
    part.replace(file)


def create(file: Path) -> TextIO:
    """A new file that others cannot read, not even for a moment."""
    file.unlink(missing_ok=True)
    return os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w")
