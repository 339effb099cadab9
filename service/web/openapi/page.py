"""/docs without a network: Swagger UI's files come from a pinned package and are served by the service itself."""

from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

DOCS, ASSETS = "/docs", "/docs/assets"
# Nothing is sent to Swagger's own validator, and a long schema does not push the routes off the screen.
PARAMETERS = {"validatorUrl": None, "defaultModelsExpandDepth": 0}


def add_documentation(app: FastAPI) -> None:
    """The page and its files; FastAPI's own page would fetch both from a CDN."""
    spec = find_spec("fastapi_offline")
    assert spec is not None
    assert spec.origin is not None
    app.mount(ASSETS, StaticFiles(directory=Path(spec.origin).parent / "static"))

    @app.get(DOCS, include_in_schema=False)
    async def show_documentation(request: Request) -> HTMLResponse:
        root = request.scope.get("root_path", "")
        return get_swagger_ui_html(
            openapi_url=f"{root}{app.openapi_url}",
            title=f"{app.title} {app.version}",
            swagger_js_url=f"{root}{ASSETS}/swagger-ui-bundle.js",
            swagger_css_url=f"{root}{ASSETS}/swagger-ui.css",
            swagger_favicon_url=f"{root}{ASSETS}/favicon.png",
            swagger_ui_parameters=PARAMETERS,
        )
