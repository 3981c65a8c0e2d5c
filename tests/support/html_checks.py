"""Judgement of a page that is one file: closed tags, ids that occur once, links that lead somewhere, nothing loaded."""

from __future__ import annotations

from html.parser import HTMLParser

_VOID = {"meta", "img", "br", "hr", "link", "input"}
_LOADING = {"src", "srcset", "data", "poster", "action", "background"}


class PageReader(HTMLParser):
    """A page as it is read; `problems`: what is wrong with it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.problems: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        self.problems += [f"<{tag}> is not closed" for tag in self._open]
        self.problems += [
            f"the id {name} occurs twice"
            for name in sorted({n for n in self.ids if self.ids.count(n) > 1})
        ]
        within = (link[1:] for link in self.links if link.startswith("#"))
        self.problems += [
            f"nothing has the id {name}" for name in sorted({*within} - {*self.ids})
        ]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in _VOID:
            self._open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif tag == "a" and name == "href":
                self.links.append(value or "")
            elif name in _LOADING and not (value or "").startswith("data:"):
                self.problems.append(f"<{tag}> loads {value}")
            elif name.startswith("on") or (tag, name) == ("link", "href"):
                self.problems.append(f"<{tag}> has {name}")

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open.pop() != tag:
            self.problems.append(f"</{tag}> at {self.getpos()} closes something else")

    def handle_data(self, data: str) -> None:
        if (
            self._open
            and self._open[-1] == "style"
            and ("url(" in data or "@import" in data)
        ):
            self.problems.append("the style loads something")
