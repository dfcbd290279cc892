"""Tags that chat templates use and Jinja lacks. Imported only where a template is compiled, because it needs Jinja."""

from __future__ import annotations

from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser


class Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the assistant's words for training; a prompt gets its body."""

    tags = {"generation"}  # noqa: RUF012  # declared so by Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
