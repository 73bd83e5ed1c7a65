#!/usr/bin/env bash
# transformers 5.23.0: a folder of further chat templates hides the template that a tokenizer has.
#
# A tokenizer may keep its chat template in `tokenizer_config.json`, and further ones as files of `additional_chat_templates/`.
# Where that folder is there and `chat_template.jinja` is not, the template of `tokenizer_config.json` is dropped without a
# warning: `tokenizer.chat_template` has only the further ones. So a conversation without functions fails, although the folder
# has a template for it. With the same text in `chat_template.jinja`, both are there.
#
# Seen with transformers 5.23.0, Python 3.11, on 27 November 2026:
#   in tokenizer_config.json alone: the template
#   with additional_chat_templates/tool_use.jinja beside it: only tool_use
#   with chat_template.jinja as well: default and tool_use
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check 'transformers==5.23.0' 'tokenizers==0.23.3' 'jinja2==3.1.6'
cat > "$folder/try.py" <<'PY'
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

folder = Path(sys.argv[1])
folder.mkdir()
words = Tokenizer(models.WordLevel({"<unk>": 0, "</s>": 1, "Hi": 2}, unk_token="<unk>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
words.save(str(folder / "tokenizer.json"))
template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": template}
(folder / "tokenizer_config.json").write_text(json.dumps(config))


def found() -> object:
    return AutoTokenizer.from_pretrained(folder).chat_template


assert found() == template
print("in tokenizer_config.json alone: the template")
(folder / "additional_chat_templates").mkdir()
(folder / "additional_chat_templates/tool_use.jinja").write_text("{{ tools }}")
assert found() == {"tool_use": "{{ tools }}"}, found()
print("with additional_chat_templates/tool_use.jinja beside it: only", *found())
(folder / "chat_template.jinja").write_text(template)
assert found() == {"default": template, "tool_use": "{{ tools }}"}, found()
print("with chat_template.jinja as well:", " and ".join(sorted(found())))
PY
"$folder/env/bin/python" "$folder/try.py" "$folder/model" 2>"$folder/errors" || { cat "$folder/errors" >&2; exit 1; }
