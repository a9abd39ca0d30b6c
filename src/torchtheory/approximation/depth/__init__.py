"""What depth and width buy: functions cheap for deep networks and dear for shallow ones."""
