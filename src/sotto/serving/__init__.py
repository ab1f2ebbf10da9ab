"""The teacher as a service: answers to students over HTTP, each charged before it leaves.

`app.create_app` is the service, `server.serve` runs it, `client.RemoteTeacher` is the student's
side. `directory` keeps what a service promised, so that it goes on after a restart.
"""
