"""From a program down to the instructions that it spends its time in: module, operator, dispatcher, function, loop."""
