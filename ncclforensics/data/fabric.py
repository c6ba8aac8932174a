"""What a fabric of switches may look like without a fault, and from where on it deviates.

The thresholds rest on 22 published maps (ibnetdiscover) of 30 to 700 switches. In every large one single links are
absent: 14 of 203 leaves of NVIDIA's Selene lack 1 of 20 uplinks, 15 of its 321 spines at most 2 of 14 links.
"""

# Words that no host is called by: the default of the driver, and names of an image before it is set up.
NO_HOST_NAMES = ("localhost", "ubuntu", "node", "dgx", "host")
VENDOR = "Mellanox Technologies"  # in descriptions that nothing set
AGGREGATION_DEVICE = "cf09"  # device number of SHARP's aggregation nodes, in every map that has some
# Ports in the map of a switch with an aggregation node on its last port: one more than can be used.
AGGREGATING_PORTS = (37, 41, 65, 81, 129, 145)
# How Linux calls the planes of a ConnectX-8 through which it is managed, and which carry no data: smi0, smi1.
PLANE_DEVICE = "smi"
PLANAR_DEVICE, PLANAR_SPEED = "1023", "XDR"  # ConnectX-8: a port is several planes (rdma-core PR 1541)

BOTH_ENDS_LEAST = 0.9  # share of links between switches that both ends show; below, the map is a part of one
SPINE_LINKS = 0.5  # a switch is no leaf if this share of its links leads to leaves with MORE_HOSTS times its hosts
MORE_HOSTS = 2
SHARED_PARENTS = 0.5  # of all parents of two siblings (Jaccard)
# Left out of a group of siblings: switches with few hosts below them, and classes of another design.
FEW_HOSTS, OTHER_DESIGN, OTHER_DESIGN_SHARE = 0.25, 0.75, 1 / 3
COMMON_PARENT = 0.4  # share of a group that has a parent, for it to be one of all
GROUP_LEAST = 4  # siblings, to say what is usual
REGULAR_SWITCHES, REGULAR_PARENTS = 0.6, 0.75  # share of a group with the usual number of links, of its parents
SHORT_SPINE, SHORT_BELOW = 0.8, 3  # share of the links of the better half; switches below that lack some
FEW_ABSENT = 0.25  # of the spread of a switch that has most of its uplinks to few parents: its siblings are even
MISSING, MISSING_LEAST, IRREGULAR = 0.2, 2, 0.34  # UFM counts single absent links; it is no fault of one leaf
# Designs are 1:1 to 2:1; 4:1 halves and quarters what GPU hosts reach.
OVERSUBSCRIBED, FAR_OVERSUBSCRIBED, RATIO_PORTS, GPU_NICS = 2.05, 3.95, 16, 4
UPLINKS_PER_LEVEL_LINK = 8  # of a switch with a link to its own level, for that link to be an accident
SLOW_SHARE = 0.1  # of the links between two levels, for slow ones not to be another design
RAIL_HOSTS, RAIL_SHARE = 3, 0.6  # hosts of a unit, and their share that is wired alike, for its wiring to be known
OTHER_ORDER = 0.2  # share of a unit's hosts that follow another order: another design
EQUAL_NICS = 3  # of a host, for one to be slow among them
ALIKE_HOSTS = 7  # of one kind at a leaf, for another one to be slow among them

# Load of links between two dumps of counters. Jobs have few, large flows, and static routes of few flows differ by
# some tens of percent: only multiples are named.
TICK_BYTES = 8  # of one port's time, that a tick of PortXmitWait stands for (Quantum and later)
WIDE_TICK_BYTES, WIDE_TICK_DEVICES = 32, ("c738", "cb20", "cf08")  # a lane; SwitchX, Switch-IB (ibdiagnet user manual)
UPLINKS_LEAST, LEAVES_LEAST = 4, 2
HOT, HOT_RATIO, HOT_SHARE, LOST = 0.8, 1.5, 1 / 8, 0.1
UNEVEN_BUSY, SPINE_RATIO = 0.4, 2
MOST_SHARE = 1.05  # of the rate of a link: more shows that the times are not those of the dumps
MUCH_DATA, MUCH_RATIO, LITTLE_LOST = 10e9, 4, 0.01  # bytes a link; without the time between the dumps
BUSY, UNEVEN_RATIO = 0.4, 3
# Forwarding tables: hosts that one uplink serves.
ROUTES_LEAST, ROUTE_RATIO, ROUTES_APART = 4, 2, 8
# Pairs of hosts: what the failed and slow ones share. A part is named if nearly all pairs through it are bad.
COVERED, PAIRS_LEAST = 0.8, 3
GOOD_PARTS = 2  # of the same kind that carry good pairs
CLASS_LEAST = 4  # pairs of one test and distance, for one of them to be slow
CHANCE = 0.01  # that some part of the kind would be as bad, if bad pairs were spread evenly
MOST_HOPS = 7  # of a route
