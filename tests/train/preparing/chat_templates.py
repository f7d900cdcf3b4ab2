"""Chat templates of several kinds; the template of `scripts.tiny_chat` is the simplest."""

MARKED = """{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' %}{% generation %}{{ m.content + '<|im_end|>' }}{% endgeneration %}
{%- else %}{{- m.content + '<|im_end|>' }}{%- endif %}{{- '\\n' }}{%- endfor %}"""
"""`CHATML` with an assistant's text marked in the template."""
THINKING = """{%- set last = messages | map(attribute='role') | list | length - 1 %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.index0 == last %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{{- m.content.strip() + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Only the last answer has a place for thoughts."""
THINKING_TOOLS = """{%- for tool in tools or [] %}{{- '<|im_start|>tool ' + tool.name + '<|im_end|>\\n' }}{%- endfor %}
{%- set last = messages | length - 1 %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.role == 'assistant' and loop.index0 == last %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{{- m.content }}
{%- for call in m.tool_calls or [] %}{{- 'CALL ' + call.function.name + ' ' + call.function.arguments | tojson }}
{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Thoughts of the last answer, and tools with their calls."""
TOOLS = """{%- for tool in tools or [] %}{{- '<|im_start|>tool ' + tool.name + '<|im_end|>\\n' }}{%- endfor %}
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content }}
{%- for call in m.tool_calls or [] %}{{- 'CALL ' + call.name }}{%- endfor %}{{- '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
"""Writes tools and calls of them."""
PLAIN = """{%- for m in messages %}{{- m.role + ': ' + m.content + '\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- 'assistant: ' }}{%- endif %}"""
"""Turns end without a special token."""
