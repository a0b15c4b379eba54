"""A thin typed client for the Kubernetes API: one connection pool, one decoder a type, one error an answer.

errors   what the API server said, one class for each answer that code reacts to
config   where the API server is, whom it trusts, and who we are
client   calls: read, list in pages, write, bind
watch    a reflector: a list kept current
lease    leader election that fences itself
events   events on objects, repeats counted
"""
