"""Barron's theorem and its relatives: functions by their frequencies, networks by sampling."""
