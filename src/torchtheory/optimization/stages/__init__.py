"""Operations of a network as stages that derivatives are carried through, for all outputs or twice."""
