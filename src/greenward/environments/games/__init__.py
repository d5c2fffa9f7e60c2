"""Games of two players: rules, scripted players, and the environment in which policies play them."""
