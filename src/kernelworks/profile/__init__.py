"""What a program did while it ran: its calls and their places, how long each took and each gap, what looking costs.

Nothing here knows what a call's work is, nor judges the time that it took: ``work`` counts, ``diagnose`` judges.
"""
