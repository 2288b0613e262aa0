"""Wire types: what users write, what the status says, and the CustomResourceDefinition made from both."""
