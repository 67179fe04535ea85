"""The migrations as alembic runs them, on the connection that the treestore hands over."""

from alembic import context

from services.treestore.storage.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
