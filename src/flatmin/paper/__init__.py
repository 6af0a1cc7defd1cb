"""The paper: its data, studies, figures, claims and report."""
