"""Changes through the object that a Deployment is rendered from; pure."""
