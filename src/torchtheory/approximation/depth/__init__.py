"""What depth and width buy: functions that are cheap for deep networks and dear for shallow ones."""
