"""The data of the example flights-live, unpacked whole."""

from examples.flights_live.data import dataset, flights_of, planes_of


def test_data_are_the_first_flights_of_the_year():
    data = dataset()
    flights, planes = flights_of(data, 1000), planes_of(data)
    assert (len(flights), len(planes)) == (1000, 3322)
    first = flights[0]
    assert (first.departs_at, first.carrier, first.flight) == ("2013-01-01T10:15:00Z", "UA", 1545)
    assert {each.tailnum for each in flights} & {each.tailnum for each in planes}
