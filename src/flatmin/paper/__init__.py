"""The paper: its data, and later its studies, figures and claims."""
