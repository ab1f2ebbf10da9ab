"""A teacher as a service: it answers students over HTTP and charges each answer before sending it.

`app.create_app` is the service, `server.serve` runs it, `client.RemoteTeacher` is the student's
side. `directory` stores the promise of a service, so that it continues after a restart.
"""
