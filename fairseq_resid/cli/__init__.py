"""fairseq's commands: how they are run as children, and what their flags say."""
