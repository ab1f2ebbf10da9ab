"""Best controls of Dosing: an exact model, bounds, open-loop controls and controllers."""
