"""The laboratory of agentkv: measurements that its development makes and a wheel does not hold."""
