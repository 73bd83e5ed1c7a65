"""`agentkv bench ruler`: questions about long synthetic contexts, asked after compression."""
