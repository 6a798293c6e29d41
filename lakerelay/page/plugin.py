"""What Airflow loads into each of its processes: so little, for the page is the API server's alone."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

PREFIX = "/lakerelay"


async def _app(scope: MutableMapping[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]) -> None:
    from lakerelay.page.app import app

    await app(scope, receive, send)


class LakerelayPlugin(AirflowPlugin):
    name = "lakerelay"
    fastapi_apps = [{"app": _app, "url_prefix": PREFIX, "name": "Lakerelay"}]  # noqa: RUF012 — as the base class declares it
    external_views = [{"name": "Lakerelay", "href": f"{PREFIX}/", "destination": "nav", "url_route": "lakerelay"}]  # noqa: RUF012
