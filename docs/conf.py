"""How Sphinx builds the documentation: `make docs`.

Pages are Markdown (MyST); tutorials are notebooks without outputs, which are run here: one that
fails fails the build. The API pages are made from the docstrings of the source, which are plain
text: `as_rest` turns each into reStructuredText. A line `@modules NAME ...` in a page becomes one
section per module; `NAME.*` stands for every module of a package, so that new ones appear.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

BAR = '<mo stretchy="false" lspace="0" rspace="0">|</mo>'
SOURCE = Path(__file__).resolve().parent.parent / "src"

project = "flatmin"
copyright = "the flatmin authors, MIT licence"
release = version = re.search(
    r'__version__ = "(.*)"', (SOURCE / "flatmin" / "__init__.py").read_text()
).group(1)

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "_generated"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

html_math_renderer = "mathml"
html_theme = "furo"
html_title = "flatmin"
html_static_path = ["_static"]
html_css_files = ["formulas.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00558c", "color-brand-content": "#00558c"}
}

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("ArrayLike", "Float", "Names", "Weights")}
smartquotes = False
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False
toc_object_entries_show_parents = "hide"
# Two classes of one name in different rooms.
suppress_warnings = ["ref.python"]
# Plain >>> blocks stay as they are, options such as +ELLIPSIS included only in the source.
trim_doctest_flags = True


def as_rest(lines: list[str]) -> list[str]:
    """A plain-text docstring as reStructuredText.

    Prose stays prose, with `code` as code; lists stay lists; indented blocks and tables, which hold
    formulas, are shown as they are; >>> blocks are highlighted.

    >>> as_rest(["The norm |w*| of `w`:", "", "    |w*| = 1"])
    ['The norm \\\\|w\\\\*\\\\| of ``w``:', '', '.. code-block:: text', '', '    |w*| = 1', '']
    """
    result: list[str] = []
    in_list = False
    for block in _blocks(lines):
        indented = all(line.startswith("    ") for line in block)
        if block[0].lstrip().startswith(">>>"):
            result += [*block, ""]
        elif re.fullmatch(r"\| .*\|", block[0]) or (indented and not in_list):
            result += [
                ".. code-block:: text",
                "",
                *("    " + line.removeprefix("    ") for line in block),
                "",
            ]
            continue
        else:
            for line in block:
                # A list that follows its introduction without an empty line.
                if line.startswith("- ") and result and result[-1] and not in_list:
                    result.append("")
                in_list = line.startswith("- ") or (in_list and line.startswith(" "))
                result.append(_escape(line))
            result.append("")
        in_list = in_list and block[0].startswith(("- ", " "))
    return result


def _blocks(lines: list[str]) -> Iterator[list[str]]:
    """Paragraphs; indented ones with only empty lines between them are one, and so is a formula
    that follows a line of prose."""
    paragraphs = [list(group) for full, group in groupby(lines, bool) if full]
    previous: list[str] = []
    for paragraph in paragraphs:
        if previous and paragraph[0].startswith("    ") and previous[-1].startswith("    "):
            previous += ["", *paragraph]
            continue
        if previous:
            yield previous
        previous = paragraph
    if previous:
        yield previous


def _escape(line: str) -> str:
    """Prose without reStructuredText's special signs; `code` becomes ``code``."""
    indent = line[: len(line) - len(line.lstrip())]
    body = line[len(indent) :]
    marker = "- " if body.startswith("- ") else ""
    text = ""
    for i, part in enumerate(re.split(r"`([^`]+)`", body[len(marker) :])):
        if i % 2:
            # Beside a letter or a sign, code needs a separator that prints nothing.
            text += ("" if not text or text[-1] in " (" else "\\ ") + f"``{part}``"
        else:
            text += "\\ " if i and re.match(r"[\w\[]", part) else ""
            text += re.sub(r"([\\*|_`])", r"\\\1", part)
    return indent + marker + text


def _process_docstring(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = as_rest(lines)


def _process_signature(
    app: Any, what: str, name: str, obj: Any, options: Any, arguments: str | None, returns: Any
) -> tuple[str, str | None] | None:
    """A signature with the annotations as the source has them: aliases keep their short names."""
    if arguments is None or not (what in ("function", "method") or is_dataclass(obj)):
        return None
    signature = inspect.signature(obj)
    kept = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    text = str(signature.replace(parameters=kept, return_annotation=inspect.Signature.empty))
    text = re.sub(r"<.*?>", "...", text)
    result = signature.return_annotation
    return re.sub(r"(?<=: )'([^']*)'", r"\1", text), result if isinstance(result, str) else None


def _modules(name: str) -> list[str]:
    """A module, or for NAME.* the modules of a package that are not private."""
    if not name.endswith(".*"):
        return [name]
    folder = SOURCE.joinpath(*name.removesuffix(".*").split("."))
    files = sorted(path.stem for path in folder.glob("[!_]*.py"))
    return [name.removesuffix("*") + stem for stem in files]


def _document(module: str) -> str:
    path = SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    if ast.get_docstring(ast.parse(text)) is None:
        return ""
    return (
        f"## {module.removeprefix('flatmin.')}\n\n```{{eval-rst}}\n"
        f".. automodule:: {module}\n   :members:\n```\n"
    )


def _expand_modules(app: Any, document: str, source: list[str]) -> None:
    source[0] = re.sub(
        r"^@modules (.*)$",
        lambda found: "\n".join(
            _document(module) for name in found[1].split() for module in _modules(name)
        ),
        source[0],
        flags=re.MULTILINE,
    )


def _formula(as_block: bool, otherwise: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """A formula as MathML, which browsers show without a network; what cannot be, by MathJax."""
    from docutils.nodes import SkipNode
    from docutils.utils.math import MathError
    from docutils.utils.math.latex2mathml import tex2mathml

    def visit(translator: Any, node: Any) -> None:
        try:
            formula = tex2mathml(node.astext(), as_block)
            # Bars are norms here: no space as around an operator.
            formula = re.sub(r"<mo[^>]*>\|</mo>", BAR, formula)
        except MathError:
            otherwise(translator, node)
        else:
            translator.body.append(f"<div>{formula}</div>" if as_block else formula)
            raise SkipNode

    return visit


def setup(app: Any) -> None:
    from sphinx.ext.mathjax import html_visit_displaymath, html_visit_math

    inline, block = _formula(False, html_visit_math), _formula(True, html_visit_displaymath)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("source-read", _expand_modules)
