"""Operations of a network as stages that derivatives are carried through."""
