"""Tasks of the category information."""

from agentkv_tasks.template import Template

TEMPLATES: tuple[Template, ...] = ()
