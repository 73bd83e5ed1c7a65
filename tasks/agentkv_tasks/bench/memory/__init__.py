"""What a process takes that reads much under a cache policy, each in a process of its own."""
